#include "runtime/kernels/conv_times.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

namespace plimsoll {
namespace {

// How often cuDNN 9.19 takes the time of moving all bytes once where channels are in groups, from steps of ConvNeXt,
// EfficientNet and MobileNetV3 (one channel a group) and of RegNet (24, 3 x 3 taps) on an H200. It grows with the taps.
constexpr double depthwise_times = 4, depthwise_times_per_tap = 0.125;
// Of a tap of an element by pass, where a channel has more taps than its own kernels for one channel a group know, from
// a step of EdgeNeXt on an H200 (9 x 9 taps, 256 images of 8 x 8 pixels of 168 channels: 275, 213 and 895 us).
constexpr int known_depthwise_taps = 49;
constexpr double unknown_tap_us[] = {1.23e-6, 0.95e-6, 4.0e-6}, unknown_start_us = 4;
// Over volumes, of 3 x 3 x 3 taps of X3D on an H200, by pass.
constexpr double volume_depthwise_times[] = {57, 48, 140};
constexpr double grouped_times[] = {20, 60, 90}, grouped_taps = 9;  // by pass
// Of two groups of 128 and 256 channels of ResNeSt on an H200: a rate that grows with the channels of a group.
constexpr int64_t wide_group_channels = 64;
constexpr double wide_group_tflops[] = {2.05, 2.05, 1.65};  // of a channel, by pass

// Of pixels that are no whole vectors; fitted to products of pixels of 96 to 768 channels by 195 to 1539.
double ragged_bias_us(const Type& result, const DeviceDescription& device) {
  constexpr double start_us = 65, times = 6.6;
  return start_us + times * device.roofline_us(0, result.bytes(), std::nullopt);
}

// cuDNN makes tiles of no fewer channels of y, or of x where these are the result, on Hopper.
constexpr int64_t tile_channels = 64;

// Along lines cuDNN 9.19 at times picks a kernel that takes 15 to 1000 times as long as its usual ones where dilated
// taps lie 30 positions apart and more: of weight gradients of 11 taps by 3 two of three (1014 and 1354 us on an H200),
// and one of twelve forward calls (30 ms, of 7 taps by 5). Our own kernels, which vary little, go before it there.
constexpr double far_share[] = {0.4, 1, 0.08};
bool reaches_far(ConvPass pass, const OpCall& call, const ConvTypes& types) {
  constexpr int64_t far = 30;
  const llvm::ArrayRef<int64_t> dilations = call.attrs.get_ints("dilations");
  return pass != ConvPass::InputGradient && types.x.rank() == 3 && !dilations.empty() && dilations[0] > 1 &&
         (types.w.shape[1] - 1) * dilations[0] >= far;
}

bool has_strides(const OpCall& call) {
  return llvm::any_of(call.attrs.get_ints("strides"), [](int64_t stride) { return stride != 1; });
}

bool has_one_tap(const ConvTypes& types) { return types.w.elements() == types.x.shape.back() * types.y.shape.back(); }

// The share of its FLOP/s that cuDNN 9.19 reaches on Hopper where channels are last: by channels of the result, of
// weight gradients by those of y, and little for wide dilations, which its kernels for Hopper do not know. Of 367 calls
// in the steps of thirteen nets on an H200, as are the times below.
double library_share(ConvPass pass, const OpCall& call, const ConvTypes& types) {
  constexpr int64_t widest[] = {9, 8, 8};
  constexpr double beyond_widest[] = {0.55, 0.48, 0.4}, of_one_tap[] = {0.97, 0.97, 0.95};
  struct Share {
    int64_t channels;
    double share;
  };
  constexpr Share of_results[] = {{64, 0.6}, {128, 0.85}, {INT64_MAX, 0.97}};
  constexpr Share of_weights[] = {{64, 0.57}, {128, 0.78}, {256, 0.95}, {INT64_MAX, 0.65}};
  const auto index = static_cast<size_t>(pass);
  if (llvm::any_of(call.attrs.get_ints("dilations"), [&](int64_t dilation) { return dilation > widest[index]; }))
    return beyond_widest[index];
  if (reaches_far(pass, call, types)) return far_share[index];
  if (has_one_tap(types)) return of_one_tap[index];
  const int64_t channels = (pass == ConvPass::InputGradient ? types.x : types.y).shape.back();
  const auto covers = [&](const Share& share) { return channels <= share.channels; };
  return pass == ConvPass::WeightGradient ? llvm::find_if(of_weights, covers)->share
                                          : llvm::find_if(of_results, covers)->share;
}

// Besides, images are turned or gathered ahead of products with strides, and parts of weight gradients are added up,
// more of them where there are few channels.
double library_start_us(ConvPass pass, const OpCall& call, const ConvTypes& types) {
  constexpr double one_tap_us[] = {4, 4, 9}, several_taps_us[] = {7, 7, 10};
  constexpr double one_tap_strided_us[] = {0, 30, 0}, several_taps_strided_us[] = {12, 24, 8}, few_dw_us = 6;
  const auto index = static_cast<size_t>(pass);
  const double strided_us = has_one_tap(types) ? one_tap_strided_us[index] : several_taps_strided_us[index];
  const bool has_few_channels = std::max(types.x.shape.back(), types.y.shape.back()) <= tile_channels;
  const bool adds_more = pass == ConvPass::WeightGradient && !has_one_tap(types) && has_few_channels;
  return (has_one_tap(types) ? one_tap_us[index] : several_taps_us[index]) + (has_strides(call) ? strided_us : 0) +
         (adds_more ? few_dw_us : 0);
}

// Results along lines of more than three taps take longer than images.
double line_times(ConvPass pass, const ConvTypes& types) {
  constexpr double times[] = {1.3, 1.25, 1};
  constexpr int64_t few_taps = 3;
  return types.x.rank() == 3 && types.w.shape[1] > few_taps ? times[static_cast<size_t>(pass)] : 1;
}

double dense_us(ConvPass pass, const OpCall& call, llvm::ArrayRef<Type> results, const ConvTypes& types,
                const DeviceDescription& device) {
  constexpr double of_copy = 0.97;
  const bool channels_last = call.get_int("channels_last");
  const Type& tiled = pass == ConvPass::InputGradient ? types.x : types.y;
  const int64_t channels = channels_last ? tiled.shape.back() : tiled.shape[1];
  const double padding = static_cast<double>(align_up(channels, tile_channels)) / static_cast<double>(channels);
  const double flops = call.op.flops(call, results) * (channels_last ? padding : 1);
  const int64_t bytes = types.x.bytes() + types.w.bytes() + types.y.bytes();
  const double us = device.roofline_us(flops, bytes, types.x.dtype);
  if (device.compute_capability != 90 || !channels_last)
    return us / device.efficiency_of(call.op.name) + device.beside_us(us);
  const double products_us = device.roofline_us(flops, 0, types.x.dtype) / library_share(pass, call, types);
  return std::max(products_us * line_times(pass, types), device.roofline_us(0, bytes, std::nullopt) / of_copy) +
         library_start_us(pass, call, types);
}

// Is it a convolution along lines that cuDNN's kernels for Hopper take? Of its input gradients the first plan is slow
// for odd channels: 332 us of bf16[16,15872,96] with 7 taps on an H200, where y takes 87.
bool is_near_line(const OpCall& call, const ConvTypes& types) {
  constexpr int64_t widest = 8;
  return types.x.rank() == 3 &&
         llvm::none_of(call.attrs.get_ints("dilations"), [](int64_t dilation) { return dilation > widest; });
}

// The time of cuDNN 9.19 on an H200 where channels are last but no multiples of 64. Its tiles have the next multiple
// of 64, or of 32 terms; those of up to 64 columns are slow, gradients with strides and those of weights of few
// channels more so. Channels that are no whole vectors go through copies, which are slower than the product.
double odd_channels_us(ConvPass pass, const OpCall& call, llvm::ArrayRef<Type> results, const ConvTypes& types,
                       const DeviceDescription& device) {
  constexpr int64_t tile_terms = 32, many_channels = 128;
  constexpr double narrow_share = 0.6, start_us = 4, strided_dx_times = 1.8, few_dw_times = 2.5, few_dw_us = 30;
  constexpr double ragged_start_us = 12, ragged_times = 13.8, ragged_dw_times = 1.6;
  constexpr double ragged_pixel_share[] = {0.146, 0.146, 0.185}, ragged_pixel_times[] = {2, 2, 2.2}, pixel_dw_us = 4;
  constexpr double line_dx_times = 4.4;
  const int64_t from = types.x.shape.back(), to = types.y.shape.back();
  const bool is_dx = pass == ConvPass::InputGradient, is_dw = pass == ConvPass::WeightGradient;
  const double flops = call.op.flops(call, results);
  const int64_t bytes = types.x.bytes() + types.w.bytes() + types.y.bytes();
  int64_t ragged_bytes = 0;
  for (const Type* image : {&types.x, &types.y})
    if (image->shape.back() % whole_vector != 0) ragged_bytes += image->bytes();
  const double ragged_us = device.roofline_us(0, ragged_bytes, std::nullopt);
  if (has_one_tap(types)) {
    const auto index = static_cast<size_t>(pass);
    const double share = ragged_bytes > 0 ? ragged_pixel_share[index] : 1;
    const double us =
        std::max(device.roofline_us(flops / share, 0, types.x.dtype), device.roofline_us(0, bytes, std::nullopt)) +
        ragged_pixel_times[index] * ragged_us + (is_dw ? pixel_dw_us : 0);
    return us + device.beside_us(us);
  }
  const int64_t tiled = is_dx ? from : to, summed = is_dx ? to : from;
  const int64_t columns = align_up(tiled, tile_channels);
  const int64_t terms = align_up(summed, summed % tile_terms == 0 ? tile_terms : tile_channels);
  const double tiles = static_cast<double>(columns * terms) / static_cast<double>(tiled * summed);
  double share = library_share(pass, call, types);
  if (!is_dw) share = std::min(share, columns <= tile_channels ? narrow_share : device.efficiency_of(call.op.name));
  double us = device.roofline_us(flops * tiles, bytes, types.x.dtype) / share + start_us;
  if (is_dx && has_strides(call))
    us *= strided_dx_times;
  else if (is_dx && columns > tile_channels && is_near_line(call, types))
    us *= line_dx_times;
  const bool are_both_odd = from % tile_channels != 0 && to % tile_channels != 0;
  if (is_dw && are_both_odd && std::min(from, to) < many_channels) us = std::min(us * few_dw_times, us + few_dw_us);
  if (ragged_bytes > 0) us = std::max(us, (ragged_start_us + ragged_times * ragged_us) * (is_dw ? ragged_dw_times : 1));
  return us + device.beside_us(us);
}

// A product of pixels is as quick as others where its pixels are whole vectors.
bool has_odd_channels(const OpCall& call, const ConvTypes& types, const DeviceDescription& device) {
  if (device.compute_capability != 90 || !is_16_bit_float(types.x.dtype) || !call.get_int("channels_last"))
    return false;
  const int64_t from = types.x.shape.back(), to = types.y.shape.back();
  const int64_t unit = types.w.elements() == from * to ? whole_vector : tile_channels;
  return std::min(from, to) >= whole_vector && (from % unit != 0 || to % unit != 0);
}

// The time of cuDNN 9.19 for one channel a group and taps that are no square, for which it has no kernels of its own on
// Hopper, and of weight gradients of lines: as measured with 5 and 11 taps. 0 for others.
double rectangle_us(ConvPass pass, const OpCall& call, const ConvTypes& types, const DeviceDescription& device) {
  constexpr double start_us = 6, y_us = 26e-6, dw_us = 29e-6, dw_pixel_us = 5.5e-3;  // of an element, and a pixel
  if (device.compute_capability != 90 || !is_16_bit_float(types.x.dtype) || !call.get_int("channels_last")) return 0;
  const SlidingWindow window = window_of(call.attrs, types.w.shape);
  const bool is_line = window.rank == 1;
  if (is_line ? pass != ConvPass::WeightGradient : window.rank != 2 || window.kernel[0] == window.kernel[1]) return 0;
  const auto elements = static_cast<double>(types.y.elements());
  const double pixels = elements / static_cast<double>(types.y.shape.back());
  switch (pass) {
    case ConvPass::Forward: return start_us + elements * y_us;
    case ConvPass::InputGradient: {
      const auto down = static_cast<double>(window.kernel[0]), across = static_cast<double>(window.kernel[1]);
      return start_us + elements * 1e-6 * (down > across ? 1.5 + 2.5 * down * across : 4 + 0.8 * down * across);
    }
    case ConvPass::WeightGradient: return start_us + std::max(elements * dw_us, is_line ? 0 : pixels * dw_pixel_us);
  }
  return 0;
}

// The time of cuDNN 9.19 for one channel of x to several of y a group, fitted to 30 calls of PiT and FastViT on an
// H200, of 2 results a group with 1 x 1 to 7 x 7 taps, of which 29 are within a factor of 2.
double multiplied_us(ConvPass pass, const OpCall& call, const ConvTypes& types, double groups, double taps) {
  constexpr double start_us = 6;
  const auto x = static_cast<double>(types.x.elements()), y = static_cast<double>(types.y.elements());
  const bool is_strided = has_strides(call);
  switch (pass) {
    case ConvPass::Forward:
      return start_us + y * groups / static_cast<double>(types.w.shape.front()) * (44e-6 + 9e-6 * taps);
    case ConvPass::InputGradient:
      return is_strided ? 4000 + x * (94e-6 + 4e-6 * taps) : start_us + y * (7.4e-6 + 3.6e-6 * taps);
    case ConvPass::WeightGradient:
      // Of more groups another of its kernels.
      constexpr double strided_groups = 128, us_of_group = 215;
      return is_strided && groups <= strided_groups ? us_of_group * groups : start_us + y * (7e-6 + 6.5e-6 * taps);
  }
  return 0;
}

// The time of cuDNN 9.19 for one channel of a volume to 16, as measured with 9 x 9 x 1 taps of lambda layers on an
// H200; the bias is added within it. 0 for others.
double one_channel_us(ConvPass pass, const OpCall& call, const ConvTypes& types, const DeviceDescription& device) {
  constexpr size_t volume_rank = 5;
  constexpr double us_of_tap[] = {0.32e-6 / 4, 0.57e-6 / 4, 0.51e-6 / 4};  // by pass, of a tap of a channel of a tile
  if (device.compute_capability != 90 || !is_16_bit_float(types.x.dtype) || !call.get_int("channels_last") ||
      types.x.shape.size() != volume_rank || types.x.shape.back() != 1)
    return 0;
  const int64_t channels = types.y.shape.back(), pixels = types.y.elements() / channels;
  const auto taps = static_cast<double>(types.w.elements() / channels);
  const double us =
      static_cast<double>(pixels * align_up(channels, tile_channels)) * taps * us_of_tap[static_cast<size_t>(pass)];
  return us + device.beside_us(us);
}

}  // namespace

double bias_us(const Type& result, const DeviceDescription& device) {
  const double us = device.roofline_us(0, 2 * result.bytes(), std::nullopt);
  return us + device.beside_us(us);
}

double cudnn_convolution_us(ConvPass pass, const OpCall& call, llvm::ArrayRef<Type> results,
                            const DeviceDescription& device) {
  const int64_t groups = call.get_int("groups");
  if (device.memory_gb_per_s <= 0) return 0;
  const ConvTypes types(pass, call, results);
  const bool channels_last = call.get_int("channels_last");
  if (groups == 1) {
    if (const double us = one_channel_us(pass, call, types, device); us > 0) return us;
    const bool is_odd = has_odd_channels(call, types, device);
    if (!is_odd && channels_last && types.x.shape.back() % whole_vector != 0) return 0;
    const double us =
        is_odd ? odd_channels_us(pass, call, results, types, device) : dense_us(pass, call, results, types, device);
    if (!has_bias(pass, call)) return us;
    return us + (is_odd && types.y.shape.back() % whole_vector != 0 ? ragged_bias_us(results[0], device)
                                                                    : bias_us(results[0], device));
  }
  const int64_t in_channels = channels_last ? types.x.shape.back() : types.x.shape[1];
  if (groups == in_channels && types.w.shape.front() == groups)
    if (const double us = rectangle_us(pass, call, types, device); us > 0)
      return us + (has_bias(pass, call) ? bias_us(results[0], device) : 0);
  const auto taps =
      static_cast<double>(types.w.elements() * groups) / static_cast<double>(types.w.shape[0] * in_channels);
  if (groups == in_channels && types.w.shape.front() > groups)
    return multiplied_us(pass, call, types, static_cast<double>(groups), taps) +
           (has_bias(pass, call) ? bias_us(results[0], device) : 0);
  const int64_t of_group = std::min(in_channels, types.w.shape.front()) / groups;
  if (of_group >= wide_group_channels) {
    const double dense = dense_us(pass, call, results, types, device);
    const double tflops = wide_group_tflops[static_cast<size_t>(pass)] * static_cast<double>(of_group);
    return std::max(dense, call.op.flops(call, results) / (tflops * 1e6)) +
           (has_bias(pass, call) ? bias_us(results[0], device) : 0);
  }
  if (groups == in_channels && types.x.rank() == 4 && channels_last && taps > known_depthwise_taps)
    return unknown_start_us +
           static_cast<double>(types.y.elements()) * taps * unknown_tap_us[static_cast<size_t>(pass)];
  const double times = groups == in_channels && types.x.rank() == 5 ? volume_depthwise_times[static_cast<size_t>(pass)]
                       : groups == in_channels
                           ? depthwise_times + depthwise_times_per_tap * taps
                           : grouped_times[static_cast<size_t>(pass)] * std::max(1.0, taps / grouped_taps);
  const auto bytes = static_cast<double>(types.x.bytes() + types.w.bytes() + types.y.bytes());
  return times * bytes / (device.memory_gb_per_s * 1e3) + device.launch_us + device.kernel_us;
}

}  // namespace plimsoll
