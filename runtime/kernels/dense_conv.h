#pragma once

#include "kernels/cuda/conv/block_runs.h"
#include "kernels/cuda/conv/dense_tiles.h"
#include "kernels/cuda/conv/dense_weight_tiles.h"
#include "runtime/kernels/own_conv.h"
#include "runtime/kernels/space_to_depth.h"

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

// A first convolution, or its weight gradient, over blocks of pixels. In the workspace lie blocks of x, then of w or
// dw, then a gradient's partial sums.
struct BlockRunsConvolution {
  SpaceToDepthConvolution made;
  cuda::BlockRuns runs;
  DType w_dtype;

  BlockRunsConvolution(ConvPass pass, const OpCall& call, llvm::ArrayRef<Type> results)
      : BlockRunsConvolution(call.attrs, ConvTypes(pass, call, results)) {}

  int64_t x_bytes() const { return align_to_tensor(made.x_type.bytes()); }
  int64_t bytes() const { return x_bytes() + align_to_tensor(made.w_type.elements() * dtype_bytes(w_dtype)); }
  cuda::DenseTiles tiles(int64_t multiprocessors) const {
    constexpr int least_columns = 64;
    return cuda::choose_dense_tiles(runs.sizes, false, multiprocessors, least_columns);
  }
  cuda::DenseWeightTiles weight_tiles(int64_t multiprocessors, int64_t workspace_bytes) const {
    return cuda::choose_dense_weight_tiles(runs.sizes, multiprocessors,
                                           workspace_bytes / static_cast<int64_t>(sizeof(float)));
  }

 private:
  BlockRunsConvolution(const Attrs& attrs, const ConvTypes& types)
      : made(attrs, types),
        runs(made.x, made.w, types.y.shape[1], types.y.shape[2], types.y.shape[3]),
        w_dtype(types.w.dtype) {}
};

}  // namespace plimsoll
