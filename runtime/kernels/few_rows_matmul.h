#pragma once

#include "kernels/cuda/matmul/few_rows_sizes.h"
#include "runtime/kernels/cuda_candidate.h"

namespace plimsoll {

// A matmul of 16-bit floats as a product of many small matrices by few rows each; none where it is no such product, or
// where the matrices of a batch do not lie one behind the other.
std::optional<cuda::FewRows> few_rows_of(const OpCall& call, llvm::ArrayRef<Type> results);

bool accepts_few_rows_product(const OpCall& call, llvm::ArrayRef<Type> results);
double few_rows_product_us(const OpCall& call, const DeviceDescription& device);

}  // namespace plimsoll
