#pragma once

// Exporters repeat the same arithmetic on constants in every layer. The importer computes it once: equal small
// constants become one value, and so do equal ops on the same constants.

#include "ir/graph.h"

#include <optional>

namespace plimsoll {

// Returns bytes that are equal for equal nodes on constants, or none if the attributes are too large to compare.
std::optional<std::string> constant_key(llvm::StringRef op, llvm::ArrayRef<ValueId> operands, const Attrs& attrs);

}  // namespace plimsoll
