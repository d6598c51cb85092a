#include "runtime/kernels/conv.h"

#include "ir/ops/conv/conv.h"
#include "runtime/kernels/conv_times.h"
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

template <ConvPass pass>
double convolution_us(const OpCall& call, const DeviceDescription& device) {
  return cudnn_convolution_us(pass, call, llvm::cantFail(infer(call)), device);
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
  double us = cudnn_convolution_us(ConvPass::InputGradient, call, results, device);
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
