#include "runtime/kernels/dense_conv.h"
#include "kernels/cuda/conv/dense.h"
#include "kernels/cuda/conv/space_to_depth.h"
#include "runtime/cuda/backend/launcher.h"
#include "runtime/cuda/backend/libraries.h"

// Our own convolutions without groups.

namespace plimsoll {
namespace {

struct PreparedTiles : CudaPrepared {
  PreparedTiles(const cuda::DenseTiles& tiles, int multiprocessors) : tiles(tiles), multiprocessors(multiprocessors) {}

  cuda::DenseTiles tiles;
  int multiprocessors;
};

template <ConvPass pass>
Result<std::unique_ptr<CudaPrepared>> prepare(CudaLibraries& libraries, const CudaCall& k) {
  const int multiprocessors = libraries.card().multiProcessorCount;
  return std::make_unique<PreparedTiles>(dense_tiles<pass>(k.call, k.result_types(), multiprocessors), multiprocessors);
}

Status launch(const CudaCall& k) {
  const auto* prepared = static_cast<const PreparedTiles*>(k.prepared);
  return launched(k, cuda::dense_convolution(k.in_scalar("x"), k.out("y"), k.in("x"), k.in("w"), k.in("bias"),
                                             prepared->tiles, prepared->multiprocessors, k.stream));
}

Status launch_dx(const CudaCall& k) {
  const auto* prepared = static_cast<const PreparedTiles*>(k.prepared);
  return launched(k, cuda::dense_convolution(k.in_scalar("dy"), k.out("dx"), k.in("dy"), k.in("w"), nullptr,
                                             prepared->tiles, prepared->multiprocessors, k.stream));
}

struct PreparedWeightTiles : CudaPrepared {
  explicit PreparedWeightTiles(const cuda::DenseWeightTiles& tiles) : tiles(tiles) {}

  cuda::DenseWeightTiles tiles;
};

// On a card unlike the plan's, tiles are chosen anew within the plan's workspace; on one like it they are the same.
Result<std::unique_ptr<CudaPrepared>> prepare_dw(CudaLibraries& libraries, const CudaCall& k) {
  return std::make_unique<PreparedWeightTiles>(
      dense_weight_tiles(k.call, k.result_types(), libraries.card().multiProcessorCount, k.workspace_bytes));
}

Status launch_dw(const CudaCall& k) {
  return launched(
      k, cuda::dense_dw(k.in_scalar("x"), k.out_scalar("dw"), k.out("dw"), k.in("x"), k.in("dy"),
                        static_cast<const PreparedWeightTiles*>(k.prepared)->tiles, k.scratch<float>(), k.stream));
}

// ---- Over blocks of pixels ----

Result<std::unique_ptr<CudaPrepared>> prepare_block_runs(CudaLibraries& libraries, const CudaCall& k) {
  const int multiprocessors = libraries.card().multiProcessorCount;
  return std::make_unique<PreparedTiles>(
      BlockRunsConvolution(ConvPass::Forward, k.call, k.result_types()).tiles(multiprocessors), multiprocessors);
}

Status launch_block_runs(const CudaCall& k) {
  const BlockRunsConvolution runs(ConvPass::Forward, k.call, k.result_types());
  const auto* prepared = static_cast<const PreparedTiles*>(k.prepared);
  auto* x = k.scratch<std::byte>();
  std::byte* w = x + runs.x_bytes();
  if (Status s = launched(k, cuda::space_to_depth(x, k.in("x"), runs.made.x, k.stream))) return s;
  if (Status s = launched(k, cuda::space_to_depth(w, k.in("w"), runs.made.w, k.stream))) return s;
  return launched(k, cuda::dense_convolution(k.in_scalar("x"), k.out("y"), x, w, k.in("bias"), prepared->tiles,
                                             prepared->multiprocessors, k.stream, {runs.runs.x, runs.runs.y}));
}

// As prepare_dw.
Result<std::unique_ptr<CudaPrepared>> prepare_block_runs_dw(CudaLibraries& libraries, const CudaCall& k) {
  const BlockRunsConvolution runs(ConvPass::WeightGradient, k.call, k.result_types());
  return std::make_unique<PreparedWeightTiles>(
      runs.weight_tiles(libraries.card().multiProcessorCount, k.workspace_bytes - runs.bytes()));
}

Status launch_block_runs_dw(const CudaCall& k) {
  const BlockRunsConvolution runs(ConvPass::WeightGradient, k.call, k.result_types());
  auto* x = k.scratch<std::byte>();
  std::byte* dw = x + runs.x_bytes();
  const Scalar to = k.out_scalar("dw");
  if (Status s = launched(k, cuda::space_to_depth(x, k.in("x"), runs.made.x, k.stream))) return s;
  if (Status s =
          launched(k, cuda::dense_dw(k.in_scalar("x"), to, dw, x, k.in("dy"),
                                     static_cast<const PreparedWeightTiles*>(k.prepared)->tiles,
                                     reinterpret_cast<float*>(x + runs.bytes()), k.stream, {runs.runs.x, runs.runs.y})))
    return s;
  return launched(k, cuda::depth_to_space(to, k.out("dw"), to, dw, runs.made.w, k.stream));
}

constexpr CudaLauncher dense_conv_table[] = {
    {op_conv, "warpgroup_taps", launch, prepare<ConvPass::Forward>},
    {op_conv_dx, "warpgroup_taps", launch_dx, prepare<ConvPass::InputGradient>},
    {op_conv_dw, "warpgroup_taps", launch_dw, prepare_dw},
    {op_conv, "warpgroup_space_to_depth", launch_block_runs, prepare_block_runs},
    {op_conv_dw, "warpgroup_space_to_depth", launch_block_runs_dw, prepare_block_runs_dw},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> dense_conv_launchers() { return dense_conv_table; }

}  // namespace plimsoll
