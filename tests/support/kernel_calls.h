#pragma once

// Reads op calls from a file in tests/cuda, on which CUDA kernels are timed and workspaces are checked.

#include "ir/graph.h"

namespace plimsoll::testing {

// Every node is a call; `dtype` replaces T in the file.
Result<Program> kernel_calls(llvm::StringRef file, DType dtype);

// Upper bound of the random numbers in an integer input: the number at the end of its name, else 1. Of -n, the numbers
// go up by one every n elements.
int64_t integers_below(llvm::StringRef input);

}  // namespace plimsoll::testing
