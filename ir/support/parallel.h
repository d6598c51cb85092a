#pragma once

#include "llvm/ADT/STLFunctionalExtras.h"

#include <cstddef>

namespace plimsoll {

// Calls f(0) to f(n - 1) on at most as many threads as the machine runs at once, and returns when all are done. The
// calls must not see each other, so that results do not depend on the machine.
void parallel_for(size_t n, llvm::function_ref<void(size_t)> f);

}  // namespace plimsoll
