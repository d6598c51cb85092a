#pragma once

// What a data set holds, in words for people.

#include "ir/support/status.h"

#include <string>
#include <vector>

namespace plimsoll {

// One line says what the path is and how many samples it has; a line follows for each field, with the range of its
// numbers in the samples that were looked at.
Result<std::vector<std::string>> describe_data(llvm::StringRef path);

}  // namespace plimsoll
