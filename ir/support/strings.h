#pragma once

// How a text begins and ends. llvm::StringRef has both under names that differ between its versions.

#include "llvm/ADT/StringRef.h"

namespace plimsoll {

inline bool starts_with(llvm::StringRef text, llvm::StringRef prefix) {
  return text.take_front(prefix.size()) == prefix;
}
inline bool ends_with(llvm::StringRef text, llvm::StringRef suffix) { return text.take_back(suffix.size()) == suffix; }

}  // namespace plimsoll
