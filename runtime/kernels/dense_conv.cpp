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

// The runs of blocks under a kernel are one set of channels.
template <ConvPass pass>
bool accepts_block_runs(const OpCall& call, llvm::ArrayRef<Type> results) {
  if (!takes_space_to_depth(pass, call, results) || call.operand(0).rank() != 4) return false;
  const cuda::ConvolutionSizes sizes = BlockRunsConvolution(pass, call, results).runs.sizes;
  return sizes.x_channels <= DenseWeightTiles::set_channels &&
         (pass == ConvPass::WeightGradient ? takes_dense_weights(sizes) : takes_dense(sizes, false));
}

int64_t block_runs_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  return BlockRunsConvolution(ConvPass::Forward, call, results).bytes();
}
int64_t block_runs_dw_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device) {
  const BlockRunsConvolution runs(ConvPass::WeightGradient, call, results);
  const DenseWeightTiles tiles = runs.weight_tiles(multiprocessors_of(device), device.convolution_workspace_bytes);
  return runs.bytes() + tiles.workspace() * static_cast<int64_t>(sizeof(float));
}

double copy_us(int64_t bytes, const DeviceDescription& device) {
  return static_cast<double>(bytes) / (device.memory_gb_per_s * 1e3);
}

// By this margin cuDNN goes before for images, where both are as quick. Along lines it does not, and whole tiles take
// less than their clocks.
// Where windows share no pixels it does by more: a step of a U-Net took 1.1 ms longer on an H200 once four such
// convolutions and two weight gradients, as long by their tiles as cuDNN's, came here.
constexpr double usual_margin = 1.1, line_margin = 0.9, apart_margin = 1.4;
constexpr int64_t whole_columns = 128;

// w: [channels, taps..., channels]
bool shares_pixels(const OpCall& call, const Type& w) {
  bool has_several = false, overlaps = false;
  for (const auto [taps, stride] :
       llvm::zip(llvm::ArrayRef<int64_t>(w.shape).drop_front().drop_back(), call.attrs.get_ints("strides"))) {
    has_several |= taps > 1;
    overlaps |= taps > stride;
  }
  return overlaps || !has_several;
}

double margin_of(const OpCall& call, const Type& w, bool is_line) {
  return !shares_pixels(call, w) ? apart_margin : is_line ? line_margin : usual_margin;
}

// Clocks of tiles, or the bytes of operands and results where these take longer, fitted to 48 shapes on an H200.
double dense_us(double margin, int64_t clocks, DType dtype, int64_t bytes, const DeviceDescription& device) {
  constexpr double copy_share = 0.85, flops_per_clock = 4096;
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
  const bool is_line = results[0].rank() == 3 && results[0].shape.back() % whole_columns == 0;
  const double margin = margin_of(call, call["w"], is_line);
  return dense_us(margin, tiles.clocks(multiprocessors_of(device)), call.operand(0).dtype, bytes, device) +
         device.launch_us + device.kernel_us;
}

double dense_dw_us(const OpCall& call, const DeviceDescription& device) {
  if (!has_rates(call, device)) return 0;
  const Types results = llvm::cantFail(infer(call));
  const int64_t clocks = weight_tiles_of(call, results, device).clocks(multiprocessors_of(device));
  const double margin = margin_of(call, results[0], false);
  return dense_us(margin, clocks, call["x"].dtype, call["x"].bytes() + call["dy"].bytes(), device) +
         copy_us(results[0].bytes(), device) + 2 * device.launch_us + device.kernel_us;
}

// The time in which blocks of x are made.
double blocks_us(const BlockRunsConvolution& runs, const Type& x, const DeviceDescription& device) {
  constexpr double copies = 1.9;
  return copies * copy_us(x.bytes() + runs.made.x_type.bytes(), device) + device.launch_us + device.kernel_us;
}

// Forward, rows of 128 bytes are what takes time, of pixels under each tap and of weights: of ResNet-50's, HRNet's,
// EfficientNet's and VGG's first convolution 3.5, 4.3, 4.5 and 7.4 ns on an H200, the last with blocks of 16 bytes.
double block_runs_forward_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double row_us = 0.004, short_block_times = 1.85;
  if (!has_rates(call, device)) return 0;
  const Types results = llvm::cantFail(infer(call));
  const BlockRunsConvolution runs(ConvPass::Forward, call, results);
  const DenseTiles tiles = runs.tiles(multiprocessors_of(device));
  const int64_t rows =
      tiles.all_steps() * (DenseTiles::halves * DenseTiles::box_pixels + tiles.columns) / multiprocessors_of(device);
  const double times = runs.made.x.block_channels > 8 ? 1 : short_block_times;
  return std::max(times * row_us * static_cast<double>(rows), copy_us(results[0].bytes(), device)) +
         blocks_us(runs, call["x"], device) + 2 * (device.launch_us + device.kernel_us);
}

double block_runs_dw_us(const OpCall& call, const DeviceDescription& device) {
  if (!has_rates(call, device)) return 0;
  const Types results = llvm::cantFail(infer(call));
  const BlockRunsConvolution runs(ConvPass::WeightGradient, call, results);
  const int64_t clocks = runs.weight_tiles(multiprocessors_of(device), device.convolution_workspace_bytes)
                             .clocks(multiprocessors_of(device));
  return dense_us(usual_margin, clocks, call["x"].dtype, runs.made.x_type.bytes() + call["dy"].bytes(), device) +
         blocks_us(runs, call["x"], device) + 3 * device.launch_us + device.kernel_us;
}

constexpr CudaCandidate on_hopper(const OpDef& op, llvm::StringLiteral name, CudaCandidate::AcceptsFn accepts,
                                  CudaCandidate::WorkspaceFn workspace, CudaCandidate::TimeFn time) {
  return {
      .op = op, .name = name, .accepts = accepts, .workspace_bytes = workspace, .predicted_us = time, .capability = 90};
}

constexpr CudaCandidate dense_conv_table[] = {
    on_hopper(op_conv, "warpgroup_taps", accepts_dense<ConvPass::Forward>, nullptr, dense_pass_us<ConvPass::Forward>),
    on_hopper(op_conv_dx, "warpgroup_taps", accepts_dense<ConvPass::InputGradient>, nullptr,
              dense_pass_us<ConvPass::InputGradient>),
    on_hopper(op_conv_dw, "warpgroup_taps", accepts_dense<ConvPass::WeightGradient>, dense_dw_workspace, dense_dw_us),
    on_hopper(op_conv, "warpgroup_space_to_depth", accepts_block_runs<ConvPass::Forward>, block_runs_workspace,
              block_runs_forward_us),
    on_hopper(op_conv_dw, "warpgroup_space_to_depth", accepts_block_runs<ConvPass::WeightGradient>,
              block_runs_dw_workspace, block_runs_dw_us),
};

}  // namespace

llvm::ArrayRef<CudaCandidate> dense_conv_candidates() { return dense_conv_table; }

}  // namespace plimsoll
