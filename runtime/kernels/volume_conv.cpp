#include "runtime/kernels/volume_conv.h"

#include "runtime/kernels/own_conv_prices.h"

// Our own convolutions over volumes. cuDNN's tiles have 64 channels and more; of 32 it takes three times as long, and
// of one channel a group up to a hundred times.

namespace plimsoll {

namespace {

constexpr size_t dimensions = 3;
constexpr int64_t most_channels = 1 << 16;

// Of a convolution over volumes with channels last, without dilations, and with sizes of 32 bits.
std::optional<SlidingWindow> volume_window(ConvPass pass, const OpCall& call, llvm::ArrayRef<Type> results) {
  constexpr int64_t most = INT32_MAX;
  const ConvTypes types(pass, call, results);
  const DType dtype = call.operand(0).dtype;
  if (!computes_in_f32(dtype) || !call.get_int("channels_last") || types.x.shape.size() != dimensions + 2 ||
      results[0].elements() == 0 || std::max(types.x.shape.back(), types.y.shape.back()) > most_channels)
    return std::nullopt;
  if (!all_operands(call, [&](const Type& type) { return type.dtype == dtype && type.elements() != 0; }) ||
      (results[0].dtype != dtype && !(pass == ConvPass::WeightGradient && is_widened(call, results[0]))))
    return std::nullopt;
  const SlidingWindow window = window_of(call.attrs, types.w.shape);
  for (size_t d = 0; d < dimensions; ++d)
    if (window.dilations[d] != 1 || window.pads_begin[d] < 0 ||
        std::max({window.kernel[d], window.strides[d], window.pads_begin[d], types.x.shape[d + 1],
                  types.y.shape[d + 1]}) > most)
      return std::nullopt;
  return window;
}

template <typename Sizes>
Sizes sizes_of_volumes(const ConvTypes& types, const SlidingWindow& window) {
  Sizes sizes;
  sizes.batch = types.x.shape.front();
  for (size_t d = 0; d < dimensions; ++d) {
    sizes.x[d] = static_cast<int>(types.x.shape[d + 1]);
    sizes.y[d] = static_cast<int>(types.y.shape[d + 1]);
    sizes.pad[d] = static_cast<int>(window.pads_begin[d]);
  }
  return sizes;
}

}  // namespace

std::optional<cuda::VolumeSizes> volume_sizes(ConvPass pass, const OpCall& call, llvm::ArrayRef<Type> results) {
  const std::optional<SlidingWindow> window = volume_window(pass, call, results);
  if (!window || !is_16_bit_float(call.operand(0).dtype) || call.get_int("groups") != 1) return std::nullopt;
  for (size_t d = 0; d < dimensions; ++d)
    if (window->kernel[d] != cuda::VolumeSizes::kernel || window->strides[d] != 1) return std::nullopt;
  const ConvTypes types(pass, call, results);
  auto sizes = sizes_of_volumes<cuda::VolumeSizes>(types, *window);
  sizes.x_channels = static_cast<int>(types.x.shape.back());
  sizes.y_channels = static_cast<int>(types.y.shape.back());
  return takes_volumes(sizes) ? std::optional(sizes) : std::nullopt;
}

std::optional<cuda::DepthwiseVolumeSizes> depthwise_volume_sizes(ConvPass pass, const OpCall& call,
                                                                 llvm::ArrayRef<Type> results) {
  const std::optional<SlidingWindow> window = volume_window(pass, call, results);
  const ConvTypes types(pass, call, results);
  if (!window || call.get_int("groups") != types.x.shape.back() || types.w.shape.front() != types.x.shape.back())
    return std::nullopt;
  auto sizes = sizes_of_volumes<cuda::DepthwiseVolumeSizes>(types, *window);
  for (size_t d = 0; d < dimensions; ++d) {
    sizes.kernel[d] = static_cast<int>(window->kernel[d]);
    sizes.stride[d] = static_cast<int>(window->strides[d]);
  }
  sizes.channels = static_cast<int>(types.x.shape.back());
  return fits_depthwise_volumes(sizes) ? std::optional(sizes) : std::nullopt;
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
bool accepts_depthwise_volumes(const OpCall& call, llvm::ArrayRef<Type> results) {
  return depthwise_volume_sizes(pass, call, results).has_value();
}

int64_t depthwise_volumes_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  const auto sizes = *depthwise_volume_sizes(ConvPass::WeightGradient, call, results);
  return cuda::DepthwiseVolumeWeights(sizes).workspace_bytes(sizes);
}

// Instructions of a thread for one plane of its input.
struct VolumeStep {
  double products = 0, loads = 0, results = 0, weights = 0;

  explicit VolumeStep(const cuda::DepthwiseVolumePlan& p) {
    const cuda::VolumeTile& tile = p.tile;
    const int taps = tile.taps * tile.taps * (p.keeps_planes ? p.ring_taps : 1);
    results = tile.made_down() * tile.made_across();
    products = results * taps * p.length / (tile.window() * tile.window());
    loads = tile.read_down() * tile.read_across();
    weights = taps;
  }
};

// Fitted to 61 calls on an H200, of which 56 are within 15 %: instructions in as many rounds of blocks as there are, of
// which a part of the copies is hidden behind. Results of Half lie in pieces of pixels where blocks have some of the
// channels each.
template <ConvPass pass>
double depthwise_volumes_us(const OpCall& call, const DeviceDescription& device) {
  constexpr bool is_dw = pass == ConvPass::WeightGradient;
  const Types results = llvm::cantFail(infer(call));
  const cuda::DepthwiseVolumeSizes c = *depthwise_volume_sizes(pass, call, results);
  const ConvTypes types(pass, call, results);
  const auto bytes = static_cast<double>(types.x.bytes() + types.w.bytes() + types.y.bytes());
  const auto us_of = [&](const auto& p, double steps, double instructions, const ConvRates& rates) {
    const double threads = steps * static_cast<double>(p.resident_blocks) * p.threads();
    const ConvTimes parts = parts_of(device, rates, pass, device.vector_tflops, bytes, threads * instructions);
    return parts.copies + parts.products + parts.launches;
  };
  if constexpr (is_dw) {
    constexpr ConvRates rates{{0, 0, 1.7}, {0, 0, 1.1}, {0, 0, 5.5}};
    constexpr double of_pixel = 12;
    const cuda::DepthwiseVolumeWeights p(c);
    const VolumeStep step(p);
    const auto steps = static_cast<double>(divide_up(p.rectangles, p.splits) * p.part_steps(1));
    return us_of(p, steps, step.products + of_pixel * (step.loads + step.results), rates);
  } else {
    constexpr ConvRates rates{{2.15, 2.15, 0}, {1, 1, 0}, {0.7, 0.7, 0}},
        in_pieces{{1.14, 1.14, 0}, {1, 1, 0}, {0.7, 0.7, 0}};
    constexpr double of_load = 6.5, of_result = 12, of_weight = 4.7;
    const cuda::DepthwiseVolumes p(c, pass == ConvPass::InputGradient);
    const VolumeStep step(p);
    const auto steps = static_cast<double>(divide_up(p.blocks(), p.resident_blocks) * p.part_steps(c.kernel[0]));
    const bool has_pieces = p.tile.steps == cuda::VolumeSteps::Half && p.vector_blocks > 1;
    return us_of(p, steps / p.every,
                 step.products + of_load * step.loads + of_result * step.results + of_weight * step.weights,
                 has_pieces ? in_pieces : rates);
  }
}

template <ConvPass pass>
bool accepts_volume_bands(const OpCall& call, llvm::ArrayRef<Type> results) {
  const auto sizes = depthwise_volume_sizes(pass, call, results);
  if (!sizes || !is_16_bit_float(call.operand(0).dtype)) return false;
  if (pass == ConvPass::WeightGradient) return fits_volume_band_weights(*sizes);
  return fits_volume_bands(*sizes, pass == ConvPass::InputGradient);
}

int64_t volume_bands_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  const auto sizes = *depthwise_volume_sizes(ConvPass::WeightGradient, call, results);
  return cuda::VolumeBandWeights(sizes).workspace_bytes(sizes);
}

// Fitted to calls on an H200, within 15 %: what warps read from shared memory and write there for a plane, of which
// words at the same bank take turns.
template <ConvPass pass>
double volume_bands_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double start_us = 10.2, of_copy = 1.2, us_of_word = 0.00031;
  const Types results = llvm::cantFail(infer(call));
  const cuda::DepthwiseVolumeSizes c = *depthwise_volume_sizes(pass, call, results);
  const ConvTypes types(pass, call, results);
  if (device.memory_gb_per_s <= 0) return 0;
  const auto bytes = static_cast<double>(types.x.bytes() + types.w.bytes() + types.y.bytes());
  const cuda::VolumeBands p(c, pass == ConvPass::InputGradient);
  const auto steps = static_cast<double>(p.plane_steps(p.out[0], p.taps - 1));
  const int read = p.stride == 1 ? 4 * (p.products() + p.taps - 1) : 4 * p.halves, written = 2 * p.products();
  const double words = p.block_pairs() * p.bank_conflicts() * (read + written);
  return start_us + bytes / (device.memory_gb_per_s * 1e3 * of_copy) + steps * words * us_of_word;
}

// The same of dw; products take their time as well.
double volume_band_weights_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double start_us = 11.6, of_copy = 1.13, us_of_word = 0.00021, us_of_product = 0.0017;
  constexpr int schedulers = 4;
  const Types results = llvm::cantFail(infer(call));
  const cuda::DepthwiseVolumeSizes c = *depthwise_volume_sizes(ConvPass::WeightGradient, call, results);
  const ConvTypes types(ConvPass::WeightGradient, call, results);
  if (device.memory_gb_per_s <= 0) return 0;
  const auto bytes = static_cast<double>(types.x.bytes() + types.y.bytes());
  const cuda::VolumeBandWeights p(c);
  const int of_lines = p.line_pairs * (p.stride + 1);
  const double products = static_cast<double>(divide_up(p.warps, schedulers) * p.warp_pairs * of_lines *
                                              divide_up(p.column_products, p.column_parts));
  const double words =
      p.block_pairs() * p.bank_conflicts() * p.line_parts * p.column_products * (2 + p.line_pairs * 2 * (p.stride + 1));
  return start_us + bytes / (device.memory_gb_per_s * 1e3 * of_copy) +
         static_cast<double>(p.plane_steps(c.x[0], 0)) * (us_of_word * words + us_of_product * products);
}

template <ConvPass pass>
bool accepts_volume_windows(const OpCall& call, llvm::ArrayRef<Type> results) {
  const auto sizes = depthwise_volume_sizes(pass, call, results);
  if (!sizes || !is_16_bit_float(call.operand(0).dtype)) return false;
  if (pass == ConvPass::WeightGradient) return fits_volume_window_weights(*sizes);
  return fits_volume_windows(*sizes, pass == ConvPass::InputGradient);
}

int64_t volume_windows_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  const auto sizes = *depthwise_volume_sizes(ConvPass::WeightGradient, call, results);
  return cuda::choose_volume_windows<cuda::VolumeWindowWeights>(sizes).workspace_bytes(sizes);
}

// Fitted to 14 calls each on an H200, all within 14 %: copies, of which what is not hidden counts, and the planes and
// windows of the busiest block.
struct WindowTimes {
  double start_us, of_copies, of_plane_us, of_window_us;

  double of(const cuda::VolumeWindowPlan& p, int64_t steps, double bytes, const DeviceDescription& device) const {
    return start_us + of_copies * bytes / (device.memory_gb_per_s * 1e3) +
           static_cast<double>(steps) * (of_plane_us + of_window_us * p.windows);
  }
};
template <ConvPass pass>
double volume_windows_us(const OpCall& call, const DeviceDescription& device) {
  if (device.memory_gb_per_s <= 0) return 0;
  const Types results = llvm::cantFail(infer(call));
  const cuda::DepthwiseVolumeSizes c = *depthwise_volume_sizes(pass, call, results);
  const ConvTypes types(pass, call, results);
  const auto bytes = static_cast<double>(types.x.bytes() + types.y.bytes());
  if constexpr (pass == ConvPass::WeightGradient) {
    const auto p = cuda::choose_volume_windows<cuda::VolumeWindowWeights>(c);
    return WindowTimes{9.6, 0, 0.21, 0.41}.of(p, p.steps(), bytes, device);
  } else {
    const auto p = cuda::choose_volume_windows<cuda::VolumeWindows>(c, pass == ConvPass::InputGradient);
    return WindowTimes{1.8, 0.27, 0.065, 0.37}.of(p, p.steps(), bytes, device);
  }
}

template <ConvPass pass>
constexpr CudaCandidate volume_windows(const OpDef& op) {
  return {.op = op,
          .name = "depthwise_volume_windows",
          .accepts = accepts_volume_windows<pass>,
          .workspace_bytes = pass == ConvPass::WeightGradient ? volume_windows_workspace : nullptr,
          .predicted_us = volume_windows_us<pass>,
          .capability = 90};
}

template <ConvPass pass>
constexpr CudaCandidate volume_bands(const OpDef& op) {
  return {.op = op,
          .name = "depthwise_volume_bands",
          .accepts = accepts_volume_bands<pass>,
          .workspace_bytes = pass == ConvPass::WeightGradient ? volume_bands_workspace : nullptr,
          .predicted_us = pass == ConvPass::WeightGradient ? volume_band_weights_us : volume_bands_us<pass>,
          .capability = 90};
}

template <ConvPass pass>
constexpr CudaCandidate depthwise_volumes(const OpDef& op) {
  return {.op = op,
          .name = "depthwise_volumes",
          .accepts = accepts_depthwise_volumes<pass>,
          .workspace_bytes = pass == ConvPass::WeightGradient ? depthwise_volumes_workspace : nullptr,
          .predicted_us = depthwise_volumes_us<pass>};
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
    depthwise_volumes<ConvPass::Forward>(op_conv),
    depthwise_volumes<ConvPass::InputGradient>(op_conv_dx),
    depthwise_volumes<ConvPass::WeightGradient>(op_conv_dw),
    volume_bands<ConvPass::Forward>(op_conv),
    volume_bands<ConvPass::InputGradient>(op_conv_dx),
    volume_bands<ConvPass::WeightGradient>(op_conv_dw),
    volume_windows<ConvPass::Forward>(op_conv),
    volume_windows<ConvPass::InputGradient>(op_conv_dx),
    volume_windows<ConvPass::WeightGradient>(op_conv_dw),
};

}  // namespace

llvm::ArrayRef<CudaCandidate> volume_conv_candidates() { return volume_conv_table; }

}  // namespace plimsoll
