#pragma once

// The calls of tests/cuda/on_card/speeds/calls.txt: what CUDA kernels are timed on.

#include "ir/graph.h"

namespace plimsoll::testing {

// Every node is a call; `dtype` stands where the file says T.
Result<Program> kernel_calls(DType dtype);

// What an integer input is drawn below: the number that its name ends in, 1 where it ends in none.
int64_t integers_below(llvm::StringRef input);

}  // namespace plimsoll::testing
