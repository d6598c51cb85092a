#pragma once

// "Did you mean": the names that a misspelt one is closest to.

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"

#include <string>
#include <vector>

namespace plimsoll {

// Closest first, at most `count`: names that contain `wanted` or are few edits away. Empty when nothing is
// near.
std::vector<std::string> did_you_mean(llvm::StringRef wanted, llvm::ArrayRef<llvm::StringRef> names, size_t count = 3);

}  // namespace plimsoll
