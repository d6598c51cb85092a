#pragma once

// Calls of ops that stand in a file below tests/cuda: what CUDA kernels are timed on, what workspaces are checked for.

#include "ir/graph.h"

namespace plimsoll::testing {

// Every node is a call; `dtype` stands where the file says T.
Result<Program> kernel_calls(llvm::StringRef file, DType dtype);

// What an integer input is drawn below: the number that its name ends in, 1 where it ends in none.
int64_t integers_below(llvm::StringRef input);

}  // namespace plimsoll::testing
