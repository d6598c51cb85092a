#include "kernels/cuda/conv/packed_lines.h"
#include "kernels/cuda/conv/packed_sums.h"
#include "runtime/kernels/own_conv_prices.h"

// Our own convolutions without groups of few channels, which need not be whole vectors of 16-bit floats: cuDNN has no
// kernels for such pixels and copies them.

namespace plimsoll {
namespace {

template <ConvPass pass>
bool accepts_packed_lines(const OpCall& call, llvm::ArrayRef<Type> results) {
  if (!accepts_any<pass>(call, results, false)) return false;
  const cuda::ConvolutionSizes sizes = sizes_of<pass>(call, results);
  if (pass == ConvPass::WeightGradient) return fits_packed_sums(sizes);
  return fits_packed_lines(sizes, pass == ConvPass::InputGradient);
}

// Fitted to 141 calls on an H200, which are within 18 % of this: bytes, words that a block reads from shared memory,
// tiles of 16 pixels, words that warps wait for each other to exchange, and weights, which a block waits for. Of weight
// gradients the steps of a warp, and parts that are written and read again.
template <ConvPass pass>
double packed_lines_us(const OpCall& call, const DeviceDescription& device) {
  const Types results = llvm::cantFail(infer(call));
  const cuda::ConvolutionSizes c = sizes_of<pass>(call, results);
  const ConvTypes types(pass, call, results);
  if (device.memory_gb_per_s <= 0) return 0;
  const auto bytes = static_cast<double>(types.x.bytes() + types.y.bytes());
  const double launch_us = device.launch_us + device.kernel_us;
  const auto copied_us = [&](double copied) { return copied / (device.memory_gb_per_s * 1e3); };
  if constexpr (pass == ConvPass::WeightGradient) {
    constexpr double read_times = 0.37, step_us = 0.43, parts_times = 1.14;
    const cuda::PackedSums p(c);
    return 2 * launch_us + read_times * copied_us(bytes) + step_us * p.steps_of_warp() +
           parts_times * copied_us(static_cast<double>(p.workspace_bytes(c)));
  } else {
    constexpr double copy_times = 0.27, words_per_us = 1380, exchanges_per_us = 335, tiles_per_us = 46,
                     weight_bytes_per_us = 54'000;
    const cuda::PackedLines p(c, pass == ConvPass::InputGradient);
    return launch_us + copy_times * copied_us(bytes) + p.words_read() / words_per_us +
           p.words_exchanged() / exchanges_per_us + p.tiles_of_block() / tiles_per_us +
           static_cast<double>(types.w.bytes()) / weight_bytes_per_us;
  }
}

template <ConvPass pass>
constexpr CudaCandidate packed_lines(const OpDef& op) {
  return {.op = op,
          .name = "packed_lines",
          .accepts = accepts_packed_lines<pass>,
          .workspace_bytes = pass == ConvPass::WeightGradient ? parts_workspace<cuda::PackedSums> : nullptr,
          .predicted_us = packed_lines_us<pass>,
          .capability = 90};
}
constexpr CudaCandidate packed_conv_table[] = {
    packed_lines<ConvPass::Forward>(op_conv),
    packed_lines<ConvPass::InputGradient>(op_conv_dx),
    packed_lines<ConvPass::WeightGradient>(op_conv_dw),
};

}  // namespace

llvm::ArrayRef<CudaCandidate> packed_conv_candidates() { return packed_conv_table; }

}  // namespace plimsoll
