#include "runtime/cuda/backend/left_matmul.h"

#include "kernels/cuda/matmul/left_gradient.h"
#include "kernels/cuda/matmul/left_product.h"
#include "runtime/cuda/backend/libraries.h"
#include "runtime/kernels/left_matmul.h"

namespace plimsoll {
namespace {

struct PreparedProduct : CudaPrepared {
  explicit PreparedProduct(int multiprocessors) : multiprocessors(multiprocessors) {}

  int multiprocessors;
};

struct PreparedGradient : CudaPrepared {
  explicit PreparedGradient(const cuda::LeftGradientTiles& tiles) : tiles(tiles) {}

  cuda::LeftGradientTiles tiles;
};

}  // namespace

Result<std::unique_ptr<CudaPrepared>> prepare_left_product(CudaLibraries& libraries, const CudaCall&) {
  return std::make_unique<PreparedProduct>(libraries.card().multiProcessorCount);
}

Status launch_left_product(const CudaCall& k) {
  const cuda::LeftProductCall call{.tiles = *left_product_of(k.call, k.result_types()),
                                   .w = k.in("a"),
                                   .x = k.in("b"),
                                   .y = k.out("y"),
                                   .type = k.in_scalar("a"),
                                   .w_is_transposed = k.call.get_int("transpose_a") != 0,
                                   .multiprocessors = static_cast<const PreparedProduct*>(k.prepared)->multiprocessors};
  return launched(k, cuda::left_product(call, k.stream));
}

// On a card unlike the plan's, the batch is divided anew within the plan's workspace.
Result<std::unique_ptr<CudaPrepared>> prepare_left_gradient(CudaLibraries& libraries, const CudaCall& k) {
  return std::make_unique<PreparedGradient>(
      left_gradient_tiles(k.call, libraries.card().multiProcessorCount, k.workspace_bytes));
}

Status launch_left_gradient(const CudaCall& k) {
  const cuda::LeftGradientCall call{.tiles = static_cast<const PreparedGradient*>(k.prepared)->tiles,
                                    .dy = k.in("a"),
                                    .x = k.in("b"),
                                    .dw = k.out("y"),
                                    .row_sums = k.out_if_given("row_sums"),
                                    .type = k.in_scalar("a"),
                                    .result_type = k.out_scalar("y"),
                                    .workspace = k.scratch<float>()};
  return launched(k, cuda::left_gradient(call, k.stream));
}

}  // namespace plimsoll
