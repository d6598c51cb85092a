#pragma once

#include "llvm/ADT/StringRef.h"

namespace plimsoll {

// Opens one of our own libraries, which stands beside the program or the library that this is part of, in a build or
// installation folder, or where an embedding program's loader looks. Null where it cannot be opened; dlerror() says
// why.
void* open_own_library(llvm::StringRef name);

}  // namespace plimsoll
