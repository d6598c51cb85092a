#include "runtime/kernels/dense_conv.h"

// Our own convolutions without groups. cuDNN is as quick or quicker at most of them, but not where wide dilations reach
// beyond the image.

namespace plimsoll {
namespace {

using cuda::DenseTiles;
using cuda::DenseWeightTiles;

template <ConvPass pass>
bool accepts_dense(const OpCall& call, llvm::ArrayRef<Type> results) {
  const ConvTypes types(pass, call, results);
  const DType dtype = call.operand(0).dtype;
  if (!is_16_bit_float(dtype) || results[0].elements() == 0 ||
      !all_operands(call, [&](const Type& type) { return type.dtype == dtype && type.elements() != 0; }))
    return false;
  if (results[0].dtype != dtype && !(pass == ConvPass::WeightGradient && is_widened(call, results[0]))) return false;
  if (!has_convolution_sizes(call.attrs, types)) return false;
  const cuda::ConvolutionSizes sizes = dense_sizes<pass>(call, results);
  return pass == ConvPass::WeightGradient ? takes_dense_weights(sizes)
                                          : takes_dense(sizes, pass == ConvPass::InputGradient);
}

int64_t multiprocessors_of(const DeviceDescription& device) { return std::max(device.multiprocessors, 1); }

DenseWeightTiles weight_tiles_of(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device) {
  return dense_weight_tiles(call, results, multiprocessors_of(device), device.convolution_workspace_bytes);
}

int64_t dense_dw_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device) {
  return weight_tiles_of(call, results, device).workspace() * static_cast<int64_t>(sizeof(float));
}

double copy_us(int64_t bytes, const DeviceDescription& device) {
  return static_cast<double>(bytes) / (device.memory_gb_per_s * 1e3);
}

// Clocks of tiles, or the bytes of operands and results where these take longer, fitted to 48 shapes on an H200. By the
// margin cuDNN goes before where both are as quick: it is at y and dx of all but wide dilations.
double dense_us(ConvPass pass, int64_t clocks, DType dtype, int64_t bytes, const DeviceDescription& device) {
  constexpr double copy_share = 0.85, flops_per_clock = 4096;
  const double margin = pass == ConvPass::WeightGradient ? 1.1 : 1.25;
  const double clocks_per_us =
      device.matmul_tflops_for(dtype) * 1e6 / (flops_per_clock * static_cast<double>(multiprocessors_of(device)));
  return std::max(margin * static_cast<double>(clocks) / clocks_per_us, copy_us(bytes, device) / copy_share);
}

bool has_rates(const OpCall& call, const DeviceDescription& device) {
  return device.memory_gb_per_s > 0 && device.matmul_tflops_for(call.operand(0).dtype) > 0;
}

template <ConvPass pass>
double dense_pass_us(const OpCall& call, const DeviceDescription& device) {
  if (!has_rates(call, device)) return 0;
  const Types results = llvm::cantFail(infer(call));
  const DenseTiles tiles = dense_tiles<pass>(call, results, multiprocessors_of(device));
  const int64_t bytes = call.operand(0).bytes() + call.operand(1).bytes() + results[0].bytes();
  return dense_us(pass, tiles.clocks(multiprocessors_of(device)), call.operand(0).dtype, bytes, device) +
         device.launch_us + device.kernel_us;
}

double dense_dw_us(const OpCall& call, const DeviceDescription& device) {
  if (!has_rates(call, device)) return 0;
  const Types results = llvm::cantFail(infer(call));
  const int64_t clocks = weight_tiles_of(call, results, device).clocks(multiprocessors_of(device));
  return dense_us(ConvPass::WeightGradient, clocks, call["x"].dtype, call["x"].bytes() + call["dy"].bytes(), device) +
         copy_us(results[0].bytes(), device) + 2 * device.launch_us + device.kernel_us;
}

constexpr CudaCandidate candidates[] = {{.op = op_conv,
                                         .name = "warpgroup_taps",
                                         .accepts = accepts_dense<ConvPass::Forward>,
                                         .predicted_us = dense_pass_us<ConvPass::Forward>,
                                         .capability = 90},
                                        {.op = op_conv_dx,
                                         .name = "warpgroup_taps",
                                         .accepts = accepts_dense<ConvPass::InputGradient>,
                                         .predicted_us = dense_pass_us<ConvPass::InputGradient>,
                                         .capability = 90},
                                        {.op = op_conv_dw,
                                         .name = "warpgroup_taps",
                                         .accepts = accepts_dense<ConvPass::WeightGradient>,
                                         .workspace_bytes = dense_dw_workspace,
                                         .predicted_us = dense_dw_us,
                                         .capability = 90}};

}  // namespace

llvm::ArrayRef<CudaCandidate> dense_conv_candidates() { return candidates; }

}  // namespace plimsoll
