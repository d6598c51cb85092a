#pragma once

// Calls of fused ops that test the kernels of all backends.

#include "tests/kernels/kernel_run.h"

namespace plimsoll::testing {

// Bodies with every op that may be in one, a few ops at a time.
std::vector<KernelCase> fused_element_cases(DType dtype);

// Bodies over lines that no run of a thread divides, parts of operands that begin at any address among them.
std::vector<KernelCase> fused_line_cases();

// Bodies with reductions: columns and rows in parts, rows whose elements read their totals, short and long, and
// dropouts that begin within a block of random numbers.
std::vector<KernelCase> fused_reduction_cases();

}  // namespace plimsoll::testing
