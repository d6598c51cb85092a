#pragma once

#include "kernels/cuda/conv/dense_tiles.h"
#include "kernels/cuda/conv/dense_weight_tiles.h"
#include "runtime/kernels/own_conv.h"

namespace plimsoll {

template <ConvPass pass>
cuda::ConvolutionSizes dense_sizes(const OpCall& call, llvm::ArrayRef<Type> results) {
  return convolution_sizes(call.attrs, ConvTypes(pass, call, results));
}

// How a convolution or its input gradient is divided.
template <ConvPass pass>
cuda::DenseTiles dense_tiles(const OpCall& call, llvm::ArrayRef<Type> results, int64_t multiprocessors) {
  return cuda::choose_dense_tiles(dense_sizes<pass>(call, results), pass == ConvPass::InputGradient, multiprocessors);
}

// How a weight gradient is divided, within so many bytes of workspace.
inline cuda::DenseWeightTiles dense_weight_tiles(const OpCall& call, llvm::ArrayRef<Type> results,
                                                 int64_t multiprocessors, int64_t workspace_bytes) {
  return cuda::choose_dense_weight_tiles(dense_sizes<ConvPass::WeightGradient>(call, results), multiprocessors,
                                         workspace_bytes / static_cast<int64_t>(sizeof(float)));
}

}  // namespace plimsoll
