#include "runtime/kernels/volume_conv.h"

#include "kernels/cuda/conv/volumes.h"
#include "runtime/cuda/backend/launcher.h"
#include "runtime/cuda/backend/libraries.h"
#include "runtime/cuda/backend/prepared_cudnn.h"

// Our own convolutions over volumes.

namespace plimsoll {
namespace {

template <typename Tiles>
struct PreparedVolumes : CudaPrepared {
  explicit PreparedVolumes(const Tiles& tiles) : tiles(tiles) {}

  Tiles tiles;
};

template <typename Tiles>
const Tiles& prepared_tiles(const CudaCall& k) {
  return static_cast<const PreparedVolumes<Tiles>*>(k.prepared)->tiles;
}

// On a card unlike the plan's, tiles are chosen anew; a sweep may then need more workspace than the plan has.
template <ConvPass pass>
Result<std::unique_ptr<CudaPrepared>> prepare(CudaLibraries& libraries, const CudaCall& k) {
  const cuda::VolumeSweep sweep =
      choose_volume_sweep(*volume_sizes(pass, k.call, k.result_types()), pass == ConvPass::InputGradient,
                          libraries.card().multiProcessorCount);
  if (sweep.packed_bytes() > k.workspace_bytes) return workspace_too_small(k, sweep.packed_bytes());
  return std::make_unique<PreparedVolumes<cuda::VolumeSweep>>(sweep);
}

Status launch(const CudaCall& k) {
  return launched(k, cuda::volume_convolution(k.in_scalar("x"), k.out("y"), k.in("x"), k.in("w"), k.in("bias"),
                                              prepared_tiles<cuda::VolumeSweep>(k), k.workspace, k.stream));
}

Status launch_dx(const CudaCall& k) {
  return launched(k, cuda::volume_convolution(k.in_scalar("dy"), k.out("dx"), k.in("dy"), k.in("w"), nullptr,
                                              prepared_tiles<cuda::VolumeSweep>(k), k.workspace, k.stream));
}

Result<std::unique_ptr<CudaPrepared>> prepare_dw(CudaLibraries& libraries, const CudaCall& k) {
  return std::make_unique<PreparedVolumes<cuda::VolumeSums>>(
      choose_volume_sums(*volume_sizes(ConvPass::WeightGradient, k.call, k.result_types()),
                         libraries.card().multiProcessorCount, k.workspace_bytes));
}

Status launch_dw(const CudaCall& k) {
  return launched(k, cuda::volume_dw(k.in_scalar("x"), k.out_scalar("dw"), k.out("dw"), k.in("x"), k.in("dy"),
                                     prepared_tiles<cuda::VolumeSums>(k), k.scratch<float>(), k.stream));
}

template <ConvPass pass>
cuda::DepthwiseVolumeSizes depthwise_sizes(const CudaCall& k) {
  return *depthwise_volume_sizes(pass, k.call, k.result_types());
}

Status launch_depthwise(const CudaCall& k) {
  return launched(k, cuda::depthwise_volumes(k.in_scalar("x"), k.out("y"), k.in("x"), k.in("w"), k.in("bias"),
                                             depthwise_sizes<ConvPass::Forward>(k), k.stream));
}
Status launch_depthwise_dx(const CudaCall& k) {
  return launched(k, cuda::depthwise_volumes_dx(k.in_scalar("dy"), k.out("dx"), k.in("dy"), k.in("w"),
                                                depthwise_sizes<ConvPass::InputGradient>(k), k.stream));
}
Status launch_depthwise_dw(const CudaCall& k) {
  return launched(k,
                  cuda::depthwise_volumes_dw(k.in_scalar("x"), k.out_scalar("dw"), k.out("dw"), k.in("x"), k.in("dy"),
                                             depthwise_sizes<ConvPass::WeightGradient>(k), k.workspace, k.stream));
}

Status launch_bands(const CudaCall& k) {
  return launched(k, cuda::volume_bands(k.in_scalar("x"), k.out("y"), k.in("x"), k.in("w"), k.in("bias"),
                                        depthwise_sizes<ConvPass::Forward>(k), k.stream));
}
Status launch_bands_dx(const CudaCall& k) {
  return launched(k, cuda::volume_bands_dx(k.in_scalar("dy"), k.out("dx"), k.in("dy"), k.in("w"),
                                           depthwise_sizes<ConvPass::InputGradient>(k), k.stream));
}
Status launch_bands_dw(const CudaCall& k) {
  return launched(k, cuda::volume_bands_dw(k.in_scalar("x"), k.out_scalar("dw"), k.out("dw"), k.in("x"), k.in("dy"),
                                           depthwise_sizes<ConvPass::WeightGradient>(k), k.workspace, k.stream));
}

Status launch_windows(const CudaCall& k) {
  return launched(k, cuda::volume_windows(k.in_scalar("x"), k.out("y"), k.in("x"), k.in("w"), k.in("bias"),
                                          depthwise_sizes<ConvPass::Forward>(k), k.stream));
}
Status launch_windows_dx(const CudaCall& k) {
  return launched(k, cuda::volume_windows_dx(k.in_scalar("dy"), k.out("dx"), k.in("dy"), k.in("w"),
                                             depthwise_sizes<ConvPass::InputGradient>(k), k.stream));
}
Status launch_windows_dw(const CudaCall& k) {
  return launched(k, cuda::volume_windows_dw(k.in_scalar("x"), k.out_scalar("dw"), k.out("dw"), k.in("x"), k.in("dy"),
                                             depthwise_sizes<ConvPass::WeightGradient>(k), k.workspace, k.stream));
}

constexpr CudaLauncher volume_conv_table[] = {
    {op_conv, "warpgroup_volumes", launch, prepare<ConvPass::Forward>},
    {op_conv_dx, "warpgroup_volumes", launch_dx, prepare<ConvPass::InputGradient>},
    {op_conv_dw, "warpgroup_volumes", launch_dw, prepare_dw},
    {op_conv, "depthwise_volumes", launch_depthwise},
    {op_conv_dx, "depthwise_volumes", launch_depthwise_dx},
    {op_conv_dw, "depthwise_volumes", launch_depthwise_dw},
    {op_conv, "depthwise_volume_bands", launch_bands},
    {op_conv_dx, "depthwise_volume_bands", launch_bands_dx},
    {op_conv_dw, "depthwise_volume_bands", launch_bands_dw},
    {op_conv, "depthwise_volume_windows", launch_windows},
    {op_conv_dx, "depthwise_volume_windows", launch_windows_dx},
    {op_conv_dw, "depthwise_volume_windows", launch_windows_dw},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> volume_conv_launchers() { return volume_conv_table; }

}  // namespace plimsoll
