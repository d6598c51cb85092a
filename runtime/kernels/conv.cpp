#include "runtime/kernels/conv.h"

#include "ir/ops/conv/conv.h"
#include "runtime/kernels/norm.h"
#include "runtime/kernels/space_to_batch.h"
#include "runtime/kernels/space_to_depth.h"

// cuDNN does convolutions of 1 to 3 spatial dimensions. Where it has no good kernel for one, another convolution of the
// same result is asked for.

namespace plimsoll {

cuda::ChannelShape channels_of_result(const OpCall& call, const Type& y) {
  return channels_of(y, call.get_int("channels_last") != 0);
}

namespace {

// A convolution of 16-bit images x with channels last to y as a product of matrices, of pixels by w.
bool is_product(const OpCall& call, const Type& x, const Type& y) {
  constexpr int64_t most = INT32_MAX / 2;  // rows and columns of tiles, which are counted in 32 bits
  constexpr int64_t word = 8;              // 16-bit floats of 16 bytes
  if (!is_16_bit_float(x.dtype) || !call.get_int("channels_last") ||
      !is_product_of_pixels(call.attrs, call["w"].shape) || y.elements() == 0 || x.elements() == 0)
    return false;
  const int64_t from = x.shape.back(), to = y.shape.back();
  return y.elements() / to <= most && std::max(from, to) <= most && from % word == 0 && to % word == 0;
}

cuda::ColumnSizes product_sizes(const Type& x, const Type& y) {
  return {y.elements() / y.shape.back(), y.shape.back(), x.shape.back()};
}

}  // namespace

std::optional<cuda::ColumnSizes> moments_sizes(const OpCall& call, llvm::ArrayRef<Type> results) {
  const Type &x = call["x"], &y = results[0];
  return is_product(call, x, y) && !call.has("bias") ? std::optional(product_sizes(x, y)) : std::nullopt;
}

std::optional<GradientSumsSizes> gradient_sums_sizes(const OpCall& call, llvm::ArrayRef<Type> results) {
  const Type &dy = call["dy"], &dx = results[0];
  if (!is_product(call, dy, dx)) return std::nullopt;
  return GradientSumsSizes{product_sizes(dy, dx), 1 + (call.has("y") ? 1 : 0) + (call.has("more_dy") ? 1 : 0)};
}

namespace {

bool accepts_convolution(const OpCall& call, llvm::ArrayRef<Type> results) {
  const Type& x = call.operand(0);
  if (!computes_in_f32(x.dtype) || x.rank() < 3 || x.rank() > 5 || results[0].elements() == 0) return false;
  return all_operands(call, [&](const Type& type) { return type.dtype == x.dtype && type.elements() != 0; }) &&
         (results[0].dtype == x.dtype || is_widened(call, results[0]));
}

// cuDNN's plans behind its first choice: in f32 some of them are wrong (of its 9.19 on an H200, gradients of 3
// channels).
bool has_16_bits(const OpCall& call, llvm::ArrayRef<Type>) { return is_16_bit_float(call.operand(0).dtype); }

// cuDNN's workspace holds partial sums and copies of what a call reads and writes, which are rearranged or padded; in
// 16 bits it copies less. No first choice of cuDNN 9.19 takes more, for none of 406 convolutions of the zoo's nets and
// of an H200, an A100 and an RTX 4090.
int64_t cudnn_own_bytes(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device) {
  constexpr int64_t partial_sums = int64_t{32} << 20;
  const int64_t copies = is_16_bit_float(call.operand(0).dtype) ? 1 : 2;
  int64_t bytes = results[0].bytes();
  for (size_t i = 0; i < call.count(); ++i)
    if (call.has(i)) bytes += call.operand(i).bytes();
  return std::min(device.convolution_workspace_bytes, align_to_tensor(partial_sums + copies * bytes));
}

int64_t narrow_copy_bytes(const OpCall& call, llvm::ArrayRef<Type> results) {
  return is_widened(call, results[0]) ? align_to_tensor(results[0].bytes() / 2) : 0;
}

int64_t cudnn_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device) {
  return cudnn_own_bytes(call, results, device) + narrow_copy_bytes(call, results);
}

// With so much, cuDNN 9.19 has a kernel for every call of tests/cuda/workspaces/calls.txt on an H200; most take none.
constexpr int64_t lean_cudnn_workspace = int64_t{8} << 20;

int64_t cudnn_lean_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device) {
  return std::min(cudnn_own_bytes(call, results, device), lean_cudnn_workspace) + narrow_copy_bytes(call, results);
}

constexpr int64_t own_cudnn_workspace = int64_t{32} << 20;  // beside the rearranged images
constexpr int64_t max_block_channels = 4096;
constexpr int64_t whole_vector = 8;                // 16-bit floats of 16 bytes
constexpr int64_t max_counted = int64_t{1} << 30;  // rows, and elements of a row, which are counted in 32 bits

// 16-bit convolutions with channels last and without groups, for which cuDNN has its best kernels.
bool is_dense_in_16_bits(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_convolution(call, results) && has_16_bits(call, results) && call.get_int("channels_last") &&
         call.get_int("groups") == 1;
}

}  // namespace

bool takes_space_to_depth(ConvPass pass, const OpCall& call, llvm::ArrayRef<Type> results) {
  const ConvTypes types(pass, call, results);
  if (!is_dense_in_16_bits(call, results) || types.x.rank() > 4 || types.x.shape.back() % whole_vector == 0 ||
      types.y.shape.back() % whole_vector != 0)
    return false;
  if (llvm::any_of(call.attrs.get_ints("dilations"), [](int64_t dilation) { return dilation != 1; })) return false;
  const SpaceToDepthConvolution made(call.attrs, types);
  const cuda::SpaceToDepth &x = made.x, &w = made.w;
  for (size_t d = 0; d < 2; ++d)
    if (w.block[d] > w.size[d]) return false;
  const int64_t longest_row = std::max(x.size[1] * x.channels, x.blocks[1] * x.block_channels);
  const int64_t rows = std::max(x.batch * x.blocks[0], w.batch * w.blocks[0]);
  return x.block_channels <= max_block_channels && std::max({longest_row, rows, types.w.elements()}) <= max_counted;
}

namespace {

// cuDNN copies pixels that are no whole vectors. Where it has no room for that, a step of CLIP in which four calls of
// 59 GFLOP were to take 2 ms took 400 ms longer than predicted on an H200.
template <ConvPass pass>
bool accepts_lean_cudnn(const OpCall& call, llvm::ArrayRef<Type> results) {
  if (!accepts_convolution(call, results)) return false;
  return !is_dense_in_16_bits(call, results) || ConvTypes(pass, call, results).x.shape.back() % whole_vector == 0;
}

template <ConvPass pass>
bool accepts_space_to_depth(const OpCall& call, llvm::ArrayRef<Type> results) {
  return takes_space_to_depth(pass, call, results);
}

template <ConvPass pass>
int64_t space_to_depth_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  return SpaceToDepthConvolution(call.attrs, ConvTypes(pass, call, results)).bytes() + own_cudnn_workspace;
}

std::optional<SpaceToBatchConvolution> space_to_batch_of(ConvPass pass, const OpCall& call,
                                                         llvm::ArrayRef<Type> results) {
  const ConvTypes types(pass, call, results);
  const Type &x = types.x, &y = types.y;
  if (!is_dense_in_16_bits(call, results) || x.rank() != 4 || x.shape.back() % whole_vector != 0 ||
      y.shape.back() % whole_vector != 0)
    return std::nullopt;
  std::optional<SpaceToBatchConvolution> made = SpaceToBatchConvolution::of(call.attrs, x, types.w.shape, y.shape);
  if (!made) return std::nullopt;
  const int64_t rows = made->x_type.shape[0] * std::max(made->x_type.shape[1], made->y_type.shape[1]);
  const int64_t longest_row = std::max(x.shape[2] * x.shape[3], y.shape[2] * y.shape[3]);
  return std::max(rows, longest_row) <= max_counted ? made : std::nullopt;
}

// Weight gradients of several runs are summed in f32.
template <ConvPass pass>
bool accepts_space_to_batch(const OpCall& call, llvm::ArrayRef<Type> results) {
  return (pass != ConvPass::WeightGradient || is_widened(call, results[0])) &&
         space_to_batch_of(pass, call, results).has_value();
}

template <ConvPass pass>
int64_t space_to_batch_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  const int64_t narrow_dw = pass == ConvPass::WeightGradient ? align_to_tensor(results[0].bytes() / 2) : 0;
  return space_to_batch_of(pass, call, results)->bytes() + own_cudnn_workspace + narrow_dw;
}

// How often cuDNN 9.19 takes the time of moving all bytes once where channels are in groups, from steps of ConvNeXt,
// EfficientNet and MobileNetV3 (one channel a group) and of RegNet (24, 3 x 3 taps) on an H200. It grows with the taps.
constexpr double depthwise_times = 4, depthwise_times_per_tap = 0.125;
// Over volumes, of 3 x 3 x 3 taps of X3D on an H200, by pass.
constexpr double volume_depthwise_times[] = {57, 48, 140};
constexpr double grouped_times[] = {20, 60, 90}, grouped_taps = 9;  // by pass

constexpr bool has_bias(ConvPass pass, const OpCall& call) {
  return pass != ConvPass::WeightGradient && call.count() > 2 && call.has(2);
}

// A launch of its own reads and writes the result.
double bias_us(const Type& result, const DeviceDescription& device) {
  const double us = device.roofline_us(0, 2 * result.bytes(), std::nullopt);
  return us + device.beside_us(us);
}

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

// The share of the roofline that cuDNN 9.19 reaches, as measured on an H200 where channels are last: little for wide
// dilations, which its kernels for Hopper do not know, and for weight gradients of several taps by channels of y.
double library_share(ConvPass pass, const OpCall& call, const ConvTypes& types, const DeviceDescription& device) {
  constexpr int64_t widest[] = {9, 9, 8};
  constexpr double beyond_widest[] = {0.55, 0.48, 0.4};
  struct Share {
    int64_t channels;
    double share;
  };
  constexpr Share of_several_taps[] = {{64, 0.57}, {128, 0.78}, {256, 0.95}, {INT64_MAX, 0.65}};
  const double usual = device.efficiency_of(call.op.name);
  if (device.compute_capability != 90 || !call.get_int("channels_last")) return usual;
  const auto index = static_cast<size_t>(pass);
  if (llvm::any_of(call.attrs.get_ints("dilations"), [&](int64_t dilation) { return dilation > widest[index]; }))
    return beyond_widest[index];
  if (reaches_far(pass, call, types)) return far_share[index];
  const int64_t from = types.x.shape.back(), to = types.y.shape.back();
  if (pass != ConvPass::WeightGradient || types.w.elements() == from * to) return usual;
  return llvm::find_if(of_several_taps, [&](const Share& s) { return to <= s.channels; })->share;
}

bool has_strides(const OpCall& call) {
  return llvm::any_of(call.attrs.get_ints("strides"), [](int64_t stride) { return stride != 1; });
}

// Several taps of no more channels than cuDNN's smallest tiles have, on Hopper.
bool has_few_channels(const OpCall& call, const ConvTypes& types, const DeviceDescription& device) {
  const int64_t from = types.x.shape.back(), to = types.y.shape.back();
  return device.compute_capability == 90 && call.get_int("channels_last") && std::max(from, to) <= tile_channels &&
         types.w.elements() > from * to;
}
// Input gradients with strides take longer then, and weight gradients have their parts added up.
double few_channels_times(ConvPass pass, const OpCall& call, const ConvTypes& types, const DeviceDescription& device) {
  constexpr double strided_times = 1.4;
  return pass == ConvPass::InputGradient && has_strides(call) && has_few_channels(call, types, device) ? strided_times
                                                                                                       : 1;
}
double few_channels_us(ConvPass pass, const OpCall& call, const ConvTypes& types, const DeviceDescription& device) {
  constexpr double parts_us = 11;
  return pass == ConvPass::WeightGradient && has_few_channels(call, types, device) ? parts_us : 0;
}

double dense_us(ConvPass pass, const OpCall& call, llvm::ArrayRef<Type> results, const ConvTypes& types,
                const DeviceDescription& device) {
  const bool channels_last = call.get_int("channels_last");
  const Type& tiled = pass == ConvPass::InputGradient ? types.x : types.y;
  const int64_t channels = channels_last ? tiled.shape.back() : tiled.shape[1];
  const double padding = static_cast<double>(align_up(channels, tile_channels)) / static_cast<double>(channels);
  const double us = device.roofline_us(call.op.flops(call, results) * (channels_last ? padding : 1),
                                       types.x.bytes() + types.w.bytes() + types.y.bytes(), types.x.dtype);
  return us / library_share(pass, call, types, device) * few_channels_times(pass, call, types, device) +
         few_channels_us(pass, call, types, device) + device.beside_us(us);
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
  const int64_t from = types.x.shape.back(), to = types.y.shape.back();
  const bool is_dx = pass == ConvPass::InputGradient, is_dw = pass == ConvPass::WeightGradient;
  const double flops = call.op.flops(call, results);
  const int64_t bytes = types.x.bytes() + types.w.bytes() + types.y.bytes();
  int64_t ragged_bytes = 0;
  for (const Type* image : {&types.x, &types.y})
    if (image->shape.back() % whole_vector != 0) ragged_bytes += image->bytes();
  const double ragged_us = device.roofline_us(0, ragged_bytes, std::nullopt);
  if (types.w.elements() == from * to) {
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
  double share = library_share(pass, call, types, device);
  if (!is_dw && columns <= tile_channels) share = std::min(share, narrow_share);
  double us = device.roofline_us(flops * tiles, bytes, types.x.dtype) / share + start_us;
  if (is_dx && has_strides(call)) us *= strided_dx_times;
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

// 0, which leaves it to the planner's roofline, for images of a few channels, which other kernels take.
template <ConvPass pass>
double convolution_us_of(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device) {
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
  const double times = groups == in_channels && types.x.rank() == 5 ? volume_depthwise_times[static_cast<size_t>(pass)]
                       : groups == in_channels
                           ? depthwise_times + depthwise_times_per_tap * taps
                           : grouped_times[static_cast<size_t>(pass)] * std::max(1.0, taps / grouped_taps);
  const auto bytes = static_cast<double>(types.x.bytes() + types.w.bytes() + types.y.bytes());
  return times * bytes / (device.memory_gb_per_s * 1e3) + device.launch_us + device.kernel_us;
}
template <ConvPass pass>
double convolution_us(const OpCall& call, const DeviceDescription& device) {
  return convolution_us_of<pass>(call, llvm::cantFail(infer(call)), device);
}

// From the first convolutions of ResNet-50, DenseNet, MaxViT and ViT-L: as often it takes the time of its roofline.
// Where pixels have whole vectors besides, blocks of them have odd numbers of channels as well.
template <ConvPass pass>
double space_to_depth_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double times = 6, odd_blocks_us = 12;
  if (device.memory_gb_per_s <= 0) return 0;
  const Types results = llvm::cantFail(infer(call));
  const ConvTypes types(pass, call, results);
  const double us = device.roofline_us(call.op.flops(call, results),
                                       types.x.bytes() + types.w.bytes() + types.y.bytes(), types.x.dtype);
  return times * us + (types.x.shape.back() > whole_vector ? odd_blocks_us : 0) + 2 * device.beside_us(us) +
         (has_bias(pass, call) ? bias_us(results[0], device) : 0);
}

// Sub-images are made and read besides; cuDNN passes over what they have of pads. Elsewhere than on Hopper, where it
// was measured, it goes before cuDNN forward, and behind it for gradients.
template <ConvPass pass>
double space_to_batch_us(const OpCall& call, const DeviceDescription& device) {
  constexpr int moves = 2;  // each writes what the next launch reads
  if (device.memory_gb_per_s <= 0 || device.compute_capability != 90) return 0;
  const Types results = llvm::cantFail(infer(call));
  const ConvTypes types(pass, call, results);
  const SpaceToBatchConvolution made = *space_to_batch_of(pass, call, results);
  const double whole =
      static_cast<double>(made.runs * made.x_type.elements()) / static_cast<double>(types.x.elements());
  return device.roofline_us(call.op.flops(call, results) * whole, 0, types.x.dtype) +
         device.roofline_us(0, moves * (types.x.bytes() + types.y.bytes()), std::nullopt) +
         static_cast<double>(made.runs * (moves + 1)) * (device.launch_us + device.kernel_us) +
         (has_bias(pass, call) ? bias_us(results[0], device) : 0);
}

// ---- conv_moments ----

constexpr int64_t float_bytes = sizeof(float);

// Places within a channel and within a sample are counted in 32 bits.
bool accepts_moments_behind(const OpCall& call, llvm::ArrayRef<Type> results) {
  const cuda::ChannelShape shape = channels_of_result(call, results[0]);
  return accepts_convolution(call, results.take_front()) && shape.per_channel() <= INT32_MAX &&
         shape.channels * shape.inner <= INT32_MAX;
}

int64_t moments_behind_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device) {
  const cuda::ChannelShape shape = channels_of_result(call, results[0]);
  return moments_workspace_bytes(shape, results[0].dtype) + cudnn_own_bytes(call, results, device);
}

// A pass over y behind the convolution reads it at this share of a copy's speed.
double moments_behind_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double pass_share = 0.86;
  if (device.memory_gb_per_s <= 0) return 0;
  const Types results = llvm::cantFail(infer(call));
  const Type &x = call["x"], &w = call["w"], &y = results[0];
  const double launch_us = device.launch_us + device.kernel_us;
  double us = convolution_us<ConvPass::Forward>(call, device);
  if (us == 0)
    us = device.roofline_us(call.op.flops(call, results), x.bytes() + w.bytes() + y.bytes(), x.dtype) /
             device.efficiency_of("conv") +
         launch_us;
  return us + static_cast<double>(y.bytes()) / (device.memory_gb_per_s * 1e3 * pass_share) + 2 * launch_us;
}

bool accepts_moments_product(const OpCall& call, llvm::ArrayRef<Type> results) {
  return moments_sizes(call, results).has_value();
}

cuda::ColumnTiling moments_tiling(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device) {
  return cuda::choose_moments_tiling(*moments_sizes(call, results), std::max(device.multiprocessors, 1), INT64_MAX);
}

int64_t moments_product_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device) {
  return moments_tiling(call, results, device).workspace() * float_bytes;
}

double copy_us(double bytes, const DeviceDescription& device) { return bytes / (device.memory_gb_per_s * 1e3); }

// Products of the tiles that a block makes one after the other, of which the last ones may be left to a few blocks.
double products_us(const cuda::ColumnTiling& tiling, DType dtype, const DeviceDescription& device) {
  constexpr double product_share = 0.82;
  const int64_t tiles = round_up(tiling.down(), tiling.row_blocks) * tiling.across();
  const double flops = 2.0 * static_cast<double>(tiles * tiling.tile_rows * tiling.tile_columns) *
                       static_cast<double>(tiling.sizes.depth);
  return device.roofline_us(flops, 0, dtype) / product_share;
}

// Fitted to 28 shapes on an H200: reads, writes and products run beside each other, a part of them does not, and each
// tile of a column takes a while to be summed.
double moments_product_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double read_share = 0.97, write_share = 0.75, not_hidden = 0.12, us_of_column = 0.01;
  if (device.memory_gb_per_s <= 0) return 0;
  const Types results = llvm::cantFail(infer(call));
  const cuda::ColumnTiling tiling = moments_tiling(call, results, device);
  const double bytes_us = copy_us(static_cast<double>(call["x"].bytes() + call["w"].bytes()) / read_share +
                                      static_cast<double>(results[0].bytes()) / write_share,
                                  device),
               flops_us = products_us(tiling, call["x"].dtype, device);
  const auto sums = static_cast<double>(divide_up(tiling.down(), tiling.row_blocks) * tiling.tile_columns);
  return std::max({bytes_us, flops_us, sums * us_of_column}) + not_hidden * std::min(bytes_us, flops_us) +
         device.launch_us + device.kernel_us;
}

// ---- conv_dx_sums ----

// dx is made where dz goes.
bool accepts_sums_behind(const OpCall& call, llvm::ArrayRef<Type> results) {
  const cuda::ChannelShape shape = channels_of_result(call, results[0]);
  const Type &dy = call["dy"], &w = call["w"];
  const bool fits = computes_in_f32(dy.dtype) && dy.rank() >= 3 && dy.rank() <= 5 && dy.elements() != 0 &&
                    w.elements() != 0 && results[0].elements() != 0;
  return fits && all_operands(call, [](const Type& type) { return computes_in_f32(type.dtype); }) &&
         shape.per_channel() <= INT32_MAX && shape.channels * shape.inner <= INT32_MAX;
}

int64_t sums_behind_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device) {
  return gradient_sums_workspace_bytes(channels_of_result(call, results[0]), results[0].dtype) +
         cudnn_own_bytes(call, results, device);
}

double sums_behind_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double pass_share = 0.86;
  if (device.memory_gb_per_s <= 0) return 0;
  const Types results = llvm::cantFail(infer(call));
  const Type &dy = call["dy"], &w = call["w"], &dx = results[0];
  const double launch_us = device.launch_us + device.kernel_us;
  double us = convolution_us_of<ConvPass::InputGradient>(call, results, device);
  if (us == 0)
    us = device.roofline_us(call.op.flops(call, results), dy.bytes() + w.bytes() + dx.bytes(), dy.dtype) /
             device.efficiency_of("conv_dx") +
         launch_us;
  const int64_t tensors = 2 + (call.has("y") ? 2 : 0) + (call.has("more_dy") ? 1 : 0);
  return us + copy_us(static_cast<double>(tensors * dx.bytes()), device) / pass_share + 2 * launch_us;
}

bool accepts_gradient_sums(const OpCall& call, llvm::ArrayRef<Type> results) {
  return gradient_sums_sizes(call, results).has_value() &&
         all_operands(call, [](const Type& type) { return computes_in_f32(type.dtype); });
}

cuda::ColumnTiling gradient_tiling(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device) {
  const GradientSumsSizes sizes = *gradient_sums_sizes(call, results);
  return cuda::choose_gradient_tiling(sizes.product, sizes.beside, std::max(device.multiprocessors, 1), INT64_MAX);
}

int64_t gradient_sums_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device) {
  return gradient_tiling(call, results, device).workspace() * float_bytes;
}

// Fitted to 11 shapes on an H200.
double gradient_sums_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double copy_share = 0.97, not_hidden = 0.3;
  if (device.memory_gb_per_s <= 0) return 0;
  const Types results = llvm::cantFail(infer(call));
  const int64_t tensors = 1 + gradient_sums_sizes(call, results)->beside;
  const double bytes_us =
                   copy_us(static_cast<double>(call["dy"].bytes() + call["w"].bytes() + tensors * results[0].bytes()) /
                               copy_share,
                           device),
               flops_us = products_us(gradient_tiling(call, results, device), call["dy"].dtype, device);
  return std::max(bytes_us, flops_us) + not_hidden * std::min(bytes_us, flops_us) + device.launch_us + device.kernel_us;
}

constexpr CudaCandidate moments_behind{.op = op_conv_moments,
                                       .name = "cudnn",
                                       .accepts = accepts_moments_behind,
                                       .workspace_bytes = moments_behind_workspace,
                                       .algorithms = 6,
                                       .accepts_others = has_16_bits,
                                       .predicted_us = moments_behind_us};
constexpr CudaCandidate warpgroup_moments{.op = op_conv_moments,
                                          .name = "warpgroup_moments",
                                          .accepts = accepts_moments_product,
                                          .workspace_bytes = moments_product_workspace,
                                          .predicted_us = moments_product_us,
                                          .capability = 90};

constexpr CudaCandidate sums_behind{.op = op_conv_dx_sums,
                                    .name = "cudnn",
                                    .accepts = accepts_sums_behind,
                                    .workspace_bytes = sums_behind_workspace,
                                    .algorithms = 6,
                                    .accepts_others = has_16_bits,
                                    .predicted_us = sums_behind_us};
constexpr CudaCandidate warpgroup_sums{.op = op_conv_dx_sums,
                                       .name = "warpgroup_sums",
                                       .accepts = accepts_gradient_sums,
                                       .workspace_bytes = gradient_sums_workspace,
                                       .predicted_us = gradient_sums_us,
                                       .capability = 90};

template <ConvPass pass>
constexpr CudaCandidate cudnn(const OpDef& op) {
  return {.op = op,
          .name = "cudnn",
          .accepts = accepts_convolution,
          .workspace_bytes = cudnn_workspace,
          .algorithms = 6,
          .accepts_others = has_16_bits,
          .predicted_us = convolution_us<pass>};
}
template <ConvPass pass>
constexpr CudaCandidate cudnn_lean(const OpDef& op) {
  return {.op = op,
          .name = "cudnn_lean",
          .accepts = accepts_lean_cudnn<pass>,
          .workspace_bytes = cudnn_lean_workspace,
          .predicted_us = convolution_us<pass>};
}
template <ConvPass pass>
constexpr CudaCandidate space_to_depth(const OpDef& op) {
  return {.op = op,
          .name = "cudnn_space_to_depth",
          .accepts = accepts_space_to_depth<pass>,
          .workspace_bytes = space_to_depth_workspace<pass>,
          .algorithms = 3,
          .predicted_us = space_to_depth_us<pass>};
}
template <ConvPass pass>
constexpr CudaCandidate space_to_batch(const OpDef& op) {
  return {.op = op,
          .name = "cudnn_space_to_batch",
          .accepts = accepts_space_to_batch<pass>,
          .workspace_bytes = space_to_batch_workspace<pass>,
          .algorithms = 3,
          .predicted_us = space_to_batch_us<pass>};
}

// Space to depth where it applies, space to batch forward, or cuDNN's own first choice: the first of these is taken
// without measured times and predictions. Further plans for each, and space to batch of gradients, which is sometimes
// slower, are there to be timed. Those with less workspace are for budgets that ask for it
// (passes/budget/lean_workspaces.h).
constexpr CudaCandidate conv_table[] = {
    space_to_depth<ConvPass::Forward>(op_conv),
    space_to_batch<ConvPass::Forward>(op_conv),
    cudnn<ConvPass::Forward>(op_conv),
    cudnn<ConvPass::InputGradient>(op_conv_dx),
    space_to_batch<ConvPass::InputGradient>(op_conv_dx),
    space_to_depth<ConvPass::WeightGradient>(op_conv_dw),
    cudnn<ConvPass::WeightGradient>(op_conv_dw),
    space_to_batch<ConvPass::WeightGradient>(op_conv_dw),
    cudnn<ConvPass::InputGradient>(op_conv_transpose),
    warpgroup_moments,
    moments_behind,
    warpgroup_sums,
    sums_behind,
    cudnn_lean<ConvPass::Forward>(op_conv),
    cudnn_lean<ConvPass::InputGradient>(op_conv_dx),
    cudnn_lean<ConvPass::WeightGradient>(op_conv_dw),
    cudnn_lean<ConvPass::InputGradient>(op_conv_transpose),
};

}  // namespace

llvm::ArrayRef<CudaCandidate> conv_candidates() { return conv_table; }

}  // namespace plimsoll
