#pragma once

// Dense layers of few columns on one side, over many rows: which ones our own kernels take, and what these and the
// library need for them.

#include "kernels/cuda/matmul/narrow_sizes.h"
#include "runtime/kernels/cuda_candidate.h"

namespace plimsoll {

// x and y, or dy.
cuda::NarrowSizes narrow_sizes(const Type& x, const Type& y);

// Besides what every product of the library asks.
bool is_narrow_linear(const OpCall& call, llvm::ArrayRef<Type> results);
bool is_narrow_gradient(const OpCall& call, llvm::ArrayRef<Type> results);

int64_t narrow_gradient_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device);

double narrow_linear_us(const OpCall& call, const DeviceDescription& device);
double narrow_gradient_us(const OpCall& call, const DeviceDescription& device);

// The library's time for such a layer, its gradient's without sums for the bias; 0 where other prices hold.
double library_narrow_linear_us(const OpCall& call, const DeviceDescription& device);
double library_narrow_gradient_us(const OpCall& call, const DeviceDescription& device);

}  // namespace plimsoll
