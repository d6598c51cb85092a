#pragma once

#include "kernels/cuda/matmul/left_product_sizes.h"
#include "runtime/kernels/cuda_candidate.h"

#include <optional>

namespace plimsoll {

// Of rows and of columns of the one matrix.
inline constexpr int64_t max_left_product_size = cuda::LeftProductTiles::max_size;

// A matmul of 16-bit floats as one matrix times each of a batch; none where our kernel does not take it.
std::optional<cuda::LeftProductTiles> left_product_of(const OpCall& call, llvm::ArrayRef<Type> results);

bool accepts_left_product(const OpCall& call, llvm::ArrayRef<Type> results);
double left_product_us(const OpCall& call, const DeviceDescription& device);

// A matmul_sum, on a card of so many multiprocessors and within so many bytes of workspace.
cuda::LeftGradientTiles left_gradient_tiles(const OpCall& call, int64_t multiprocessors, int64_t max_bytes);

bool accepts_left_gradient(const OpCall& call, llvm::ArrayRef<Type> results);
int64_t left_gradient_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device);
double left_gradient_us(const OpCall& call, const DeviceDescription& device);

}  // namespace plimsoll
