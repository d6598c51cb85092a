#pragma once

// Exporters repeat the same arithmetic on constants in every layer. The importer computes it once: equal small
// constants are one value, and an op on the same constants with the same attributes is too.

#include "ir/graph.h"

#include <optional>

namespace plimsoll {

// What makes two nodes on constants equal, as bytes; none when the attributes are too large to compare.
std::optional<std::string> constant_key(llvm::StringRef op, llvm::ArrayRef<ValueId> operands, const Attrs& attrs);

}  // namespace plimsoll
