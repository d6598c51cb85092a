#include "runtime/kernels/plane_taps_conv.h"

#include <cmath>

// Our own convolutions over volumes of one channel whose taps lie in planes. cuDNN, whose tiles of channels are mostly
// empty there, takes 40 to 80 times as long as the bytes.

namespace plimsoll {

std::optional<cuda::PlaneTaps> plane_taps_sizes(ConvPass pass, const OpCall& call, llvm::ArrayRef<Type> results) {
  constexpr size_t dimensions = 3, last = dimensions - 1;
  const ConvTypes types(pass, call, results);
  const DType dtype = call.operand(0).dtype;
  if (!is_16_bit_float(dtype) || !call.get_int("channels_last") || call.get_int("groups") != 1 ||
      types.x.shape.size() != dimensions + 2 || results[0].elements() == 0 || types.x.shape.back() != 1 ||
      types.y.shape.back() != cuda::PlaneTaps::channels)
    return std::nullopt;
  if (!all_operands(call, [&](const Type& type) { return type.dtype == dtype && type.elements() != 0; }) ||
      (results[0].dtype != dtype && !(pass == ConvPass::WeightGradient && is_widened(call, results[0]))))
    return std::nullopt;
  const SlidingWindow window = window_of(call.attrs, types.w.shape);
  constexpr int64_t most = int64_t{1} << 15;
  for (size_t d = 0; d < dimensions; ++d)
    if (window.strides[d] != 1 || window.dilations[d] != 1 || window.pads_begin[d] < 0 || window.pads_end[d] < 0 ||
        std::max({window.kernel[d], window.pads_begin[d], types.x.shape[d + 1], types.y.shape[d + 1]}) > most)
      return std::nullopt;
  if (window.kernel[last] != 1 || types.x.shape[last + 1] != types.y.shape[last + 1] || types.x.shape[0] > most)
    return std::nullopt;
  cuda::PlaneTaps sizes;
  sizes.images = static_cast<int>(types.x.shape[0]);
  for (size_t d = 0; d < last; ++d) {
    sizes.x[d] = static_cast<int>(types.x.shape[d + 1]);
    sizes.y[d] = static_cast<int>(types.y.shape[d + 1]);
    sizes.pad[d] = static_cast<int>(window.pads_begin[d]);
    sizes.kernel[d] = static_cast<int>(window.kernel[d]);
  }
  sizes.run = static_cast<int>(types.x.shape[last + 1]);
  return takes_plane_taps(sizes) ? std::optional(sizes) : std::nullopt;
}

namespace {

template <ConvPass pass>
bool accepts_plane_taps(const OpCall& call, llvm::ArrayRef<Type> results) {
  return plane_taps_sizes(pass, call, results).has_value();
}

int64_t sums_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  return plane_taps_sizes(ConvPass::WeightGradient, call, results)->workspace_bytes();
}

// Fitted to 5 shapes forward and 3 of each gradient on an H200, with 9 x 9, 7 x 7 and 5 x 5 taps. Forward the products
// of a multiprocessor take their time where taps are many. A warp of dx waits for dy, four pixels at a time; more than
// a block on a multiprocessor hide a part of that. Blocks of dw, two of which share a multiprocessor, go in rounds.
template <ConvPass pass>
double plane_taps_us(const OpCall& call, const DeviceDescription& device) {
  if (device.memory_gb_per_s <= 0) return 0;
  constexpr double tile_us = 4e-3, first_us = 1.5, of_copy = 0.93;
  constexpr double fours_us = 0.35, row_us = 0.05, hidden = 0.75, of_copy_dx = 0.75, first_dx_us = 2.5;
  constexpr double pixel_us = 0.16, pixel_tile_us = 0.04, of_copy_dw = 0.85, first_dw_us = 6;
  const Types results = llvm::cantFail(infer(call));
  const cuda::PlaneTaps p = *plane_taps_sizes(pass, call, results);
  const ConvTypes types(pass, call, results);
  const double copied_us = static_cast<double>(types.x.bytes() + types.y.bytes()) / (device.memory_gb_per_s * 1e3),
               launch_us = device.launch_us + device.kernel_us;
  const auto multiprocessors = static_cast<double>(std::max(device.multiprocessors, 1));
  const auto pixels = static_cast<double>(p.pixels());
  if (pass == ConvPass::Forward) {
    const double tiles = pixels * p.images * (p.run / cuda::PlaneTaps::tile) / multiprocessors;
    return std::max(copied_us / of_copy, tiles * tile_us * p.tap_tiles()) + first_us + launch_us;
  }
  if (pass == ConvPass::InputGradient) {
    const double fours = static_cast<double>(p.y[0]) * p.fours_of_row(),
                 blocks = static_cast<double>(p.warp_items()) / cuda::PlaneTaps::warps / multiprocessors;
    const double waits_us = fours * (fours_us + row_us * p.tap_rows()) * std::max(1.0, hidden * blocks);
    return std::max(copied_us / of_copy_dx, waits_us) + first_dx_us + launch_us;
  }
  const double rounds = std::ceil(static_cast<double>(p.slices()) / (2 * multiprocessors)),
               steps = pixels * (p.slice() / cuda::PlaneTaps::tile) / cuda::PlaneTaps::warps;
  return std::max(copied_us / of_copy_dw, rounds * steps * (pixel_us + pixel_tile_us * p.tap_tiles())) + first_dw_us +
         2 * launch_us;
}

template <ConvPass pass>
constexpr CudaCandidate plane_taps(const OpDef& op) {
  return {.op = op,
          .name = "plane_taps",
          .accepts = accepts_plane_taps<pass>,
          .workspace_bytes = pass == ConvPass::WeightGradient ? sums_workspace : nullptr,
          .predicted_us = plane_taps_us<pass>,
          .capability = 90};
}
constexpr CudaCandidate plane_taps_table[] = {
    plane_taps<ConvPass::Forward>(op_conv),
    plane_taps<ConvPass::InputGradient>(op_conv_dx),
    plane_taps<ConvPass::WeightGradient>(op_conv_dw),
};

}  // namespace

llvm::ArrayRef<CudaCandidate> plane_taps_candidates() { return plane_taps_table; }

}  // namespace plimsoll
