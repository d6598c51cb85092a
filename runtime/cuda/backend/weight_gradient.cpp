#include "runtime/cuda/backend/weight_gradient.h"

#include "kernels/cuda/matmul/weight_gradient.h"
#include "runtime/cuda/backend/libraries.h"
#include "runtime/kernels/matmul.h"

namespace plimsoll {
namespace {

struct PreparedWeightGradient : CudaPrepared {
  explicit PreparedWeightGradient(const cuda::WeightGradientTiles& tiles) : tiles(tiles) {}

  cuda::WeightGradientTiles tiles;
};

}  // namespace

// On a card unlike the plan's, tiles are chosen anew within the plan's workspace; on one like it they are the same.
Result<std::unique_ptr<CudaPrepared>> prepare_weight_gradient(CudaLibraries& libraries, const CudaCall& k) {
  return std::make_unique<PreparedWeightGradient>(
      cuda::choose_weight_gradient_tiles(weight_gradient_sizes(k.call), libraries.card().multiProcessorCount,
                                         k.workspace_bytes / static_cast<int64_t>(sizeof(float))));
}

Status launch_weight_gradient(const CudaCall& k) {
  const WeightGradientSides sides(k.call);
  const cuda::WeightGradientCall call{.tiles = static_cast<const PreparedWeightGradient*>(k.prepared)->tiles,
                                      .left = k.in(sides.left),
                                      .right = k.in(sides.right),
                                      .type = k.in_scalar("x"),
                                      .y_type = k.out_scalar("dw"),
                                      .dw = k.out("dw"),
                                      .dbias = k.out("dbias"),
                                      .addend = k.in("addend"),
                                      .workspace = k.scratch<float>()};
  return launched(k, cuda::weight_gradient(call, k.stream));
}

}  // namespace plimsoll
