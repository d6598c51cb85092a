#include "runtime/kernels/volume_conv.h"

// Our own convolutions over volumes. cuDNN's tiles have 64 channels and more; of 32 it takes three times as long.

namespace plimsoll {

std::optional<cuda::VolumeSizes> volume_sizes(ConvPass pass, const OpCall& call, llvm::ArrayRef<Type> results) {
  constexpr size_t dimensions = 3;
  const ConvTypes types(pass, call, results);
  const DType dtype = call.operand(0).dtype;
  if (!is_16_bit_float(dtype) || !call.get_int("channels_last") || call.get_int("groups") != 1 ||
      types.x.shape.size() != dimensions + 2 || results[0].elements() == 0)
    return std::nullopt;
  if (!all_operands(call, [&](const Type& type) { return type.dtype == dtype && type.elements() != 0; }) ||
      (results[0].dtype != dtype && !(pass == ConvPass::WeightGradient && is_widened(call, results[0]))))
    return std::nullopt;
  const SlidingWindow window = window_of(call.attrs, types.w.shape);
  cuda::VolumeSizes sizes;
  sizes.batch = types.x.shape.front();
  for (size_t d = 0; d < dimensions; ++d) {
    constexpr int64_t most = INT32_MAX;
    if (window.kernel[d] != cuda::VolumeSizes::kernel || window.strides[d] != 1 || window.dilations[d] != 1 ||
        window.pads_begin[d] < 0 || std::max({window.pads_begin[d], types.x.shape[d + 1], types.y.shape[d + 1]}) > most)
      return std::nullopt;
    sizes.x[d] = static_cast<int>(types.x.shape[d + 1]);
    sizes.y[d] = static_cast<int>(types.y.shape[d + 1]);
    sizes.pad[d] = static_cast<int>(window.pads_begin[d]);
  }
  constexpr int64_t most_channels = 1 << 16;
  if (std::max(types.x.shape.back(), types.y.shape.back()) > most_channels) return std::nullopt;
  sizes.x_channels = static_cast<int>(types.x.shape.back());
  sizes.y_channels = static_cast<int>(types.y.shape.back());
  return takes_volumes(sizes) ? std::optional(sizes) : std::nullopt;
}

namespace {

template <ConvPass pass>
bool accepts_volumes(const OpCall& call, llvm::ArrayRef<Type> results) {
  return volume_sizes(pass, call, results).has_value();
}

int64_t multiprocessors_of(const DeviceDescription& device) { return std::max(device.multiprocessors, 1); }

template <ConvPass pass>
cuda::VolumeSweep sweep_of(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device) {
  return choose_volume_sweep(*volume_sizes(pass, call, results), pass == ConvPass::InputGradient,
                             multiprocessors_of(device));
}
cuda::VolumeSums sums_of(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device) {
  return choose_volume_sums(*volume_sizes(ConvPass::WeightGradient, call, results), multiprocessors_of(device),
                            device.convolution_workspace_bytes);
}

// Weights as the kernel reads them.
template <ConvPass pass>
int64_t sweep_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device) {
  return sweep_of<pass>(call, results, device).packed_bytes();
}
int64_t sums_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device) {
  return sums_of(call, results, device).workspace_bytes();
}

// By the margin cuDNN goes before where both are as quick.
double clocks_us(int64_t clocks, const OpCall& call, const DeviceDescription& device) {
  constexpr double flops_per_clock = 4096, margin = 1.05;
  const double clocks_per_us = device.matmul_tflops_for(call.operand(0).dtype) * 1e6 /
                               (flops_per_clock * static_cast<double>(multiprocessors_of(device)));
  return margin * static_cast<double>(clocks) / clocks_per_us + 2 * device.launch_us + device.kernel_us;
}

bool has_rates(const OpCall& call, const DeviceDescription& device) {
  return device.memory_gb_per_s > 0 && device.matmul_tflops_for(call.operand(0).dtype) > 0;
}

template <ConvPass pass>
double sweep_us(const OpCall& call, const DeviceDescription& device) {
  if (!has_rates(call, device)) return 0;
  const Types results = llvm::cantFail(infer(call));
  return clocks_us(sweep_of<pass>(call, results, device).clocks(multiprocessors_of(device)), call, device);
}
double sums_us(const OpCall& call, const DeviceDescription& device) {
  if (!has_rates(call, device)) return 0;
  const Types results = llvm::cantFail(infer(call));
  return clocks_us(sums_of(call, results, device).clocks(multiprocessors_of(device)), call, device);
}

template <ConvPass pass>
constexpr CudaCandidate sweep(const OpDef& op) {
  return {.op = op,
          .name = "warpgroup_volumes",
          .accepts = accepts_volumes<pass>,
          .workspace_bytes = sweep_workspace<pass>,
          .predicted_us = sweep_us<pass>,
          .capability = 90};
}
constexpr CudaCandidate volume_conv_table[] = {
    sweep<ConvPass::Forward>(op_conv),
    sweep<ConvPass::InputGradient>(op_conv_dx),
    {.op = op_conv_dw,
     .name = "warpgroup_volumes",
     .accepts = accepts_volumes<ConvPass::WeightGradient>,
     .workspace_bytes = sums_workspace,
     .predicted_us = sums_us,
     .capability = 90},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> volume_conv_candidates() { return volume_conv_table; }

}  // namespace plimsoll
