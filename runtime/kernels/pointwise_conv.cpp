#include "kernels/cuda/conv/pointwise_chunks.h"
#include "runtime/kernels/own_conv_prices.h"

#include <array>

// Our own convolutions of one tap over pixels of few channels. cuDNN copies pixels that are no multiples of 16 bytes,
// and takes up to four times as long as the bytes for weight gradients of others.

namespace plimsoll {
namespace {

template <ConvPass pass>
bool accepts_pointwise_chunks(const OpCall& call, llvm::ArrayRef<Type> results) {
  if (!accepts_any<pass>(call, results, false)) return false;
  const cuda::ConvolutionSizes sizes = sizes_of<pass>(call, results);
  if (pass == ConvPass::WeightGradient) return fits_pointwise_chunk_sums(sizes);
  return fits_pointwise_chunks(sizes, pass == ConvPass::InputGradient);
}

int64_t chunk_sums_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  const auto c = sizes_of<ConvPass::WeightGradient>(call, results);
  return cuda::PointwiseChunkSums(pixels_of(c), c.x_channels, c.y_channels).workspace_bytes();
}

// The most words at the same bank of shared memory that a warp reads at once: 8 words `across` apart at each of four
// places `down` apart.
int bank_conflicts(int across, int down) {
  constexpr int banks = 32;
  std::array<int, banks> at{};
  for (int i = 0; i < 8; ++i)
    for (int j = 0; j < 4; ++j) ++at[static_cast<size_t>((i * across + j * down) % banks)];
  return *std::max_element(at.begin(), at.end());
}

// Fitted to 18 calls of y and dx on an H200, of which 16 are within 15 %: bytes come and go beside products.
template <ConvPass pass>
double pointwise_chunks_us(const OpCall& call, const DeviceDescription& device) {
  constexpr bool gradient = pass == ConvPass::InputGradient;
  constexpr double start_us = 5.6, of_copy = 1.29, us_of_product = 0.0222;
  const Types results = llvm::cantFail(infer(call));
  const ConvTypes types(pass, call, results);
  const cuda::ConvolutionSizes c = sizes_of<pass>(call, results);
  if (device.memory_gb_per_s <= 0) return 0;
  const cuda::PointwiseChunks p(pixels_of(c), gradient ? c.y_channels : c.x_channels,
                                gradient ? c.x_channels : c.y_channels);
  const auto bytes = static_cast<double>(types.x.bytes() + types.w.bytes() + types.y.bytes());
  const auto products = static_cast<double>(divide_up(p.chunks, p.splits) * p.made_steps() * p.made_tiles());
  return start_us + bytes / (device.memory_gb_per_s * 1e3 * of_copy) + us_of_product * products;
}

// Fitted to 23 calls on an H200, which are within 5 %. A warp reads words of its rows and columns for each 16 pixels,
// at the same banks as others where pixels have many channels. What blocks leave is read from the second-level cache.
double pointwise_chunk_sums_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double start_us = 7.5, of_copy = 1.24, us_of_product = 0.0018, us_of_read = 0.00043, of_copied_sums = 0.6;
  const Types results = llvm::cantFail(infer(call));
  const ConvTypes types(ConvPass::WeightGradient, call, results);
  const cuda::ConvolutionSizes c = sizes_of<ConvPass::WeightGradient>(call, results);
  if (device.memory_gb_per_s <= 0) return 0;
  const cuda::PointwiseChunkSums p(pixels_of(c), c.x_channels, c.y_channels);
  const double bytes_per_us = device.memory_gb_per_s * 1e3;
  const auto bytes = static_cast<double>(types.x.bytes() + types.y.bytes());
  const auto steps = static_cast<double>(divide_up(p.chunks, p.splits) *
                                         divide_up(p.chunk_pixels / cuda::PixelChunks::product_pixels, p.turns));
  const int warps = p.row_parts * p.column_parts * p.turns;
  const int products = warps * p.warp_rows * p.warp_columns * 2 / 4;
  const int reads = warps * (p.warp_rows * bank_conflicts(1, p.rows) + p.warp_columns * bank_conflicts(1, p.columns));
  return start_us + bytes / (bytes_per_us * of_copy) +
         2 * static_cast<double>(p.workspace_bytes()) / (bytes_per_us * of_copied_sums) +
         steps * (us_of_product * products + us_of_read * reads);
}

template <ConvPass pass>
constexpr CudaCandidate pointwise_chunks(const OpDef& op) {
  return {.op = op,
          .name = "pointwise_chunks",
          .accepts = accepts_pointwise_chunks<pass>,
          .workspace_bytes = pass == ConvPass::WeightGradient ? chunk_sums_workspace : nullptr,
          .predicted_us = pass == ConvPass::WeightGradient ? pointwise_chunk_sums_us : pointwise_chunks_us<pass>,
          .capability = 90};
}
constexpr CudaCandidate pointwise_conv_table[] = {
    pointwise_chunks<ConvPass::Forward>(op_conv),
    pointwise_chunks<ConvPass::InputGradient>(op_conv_dx),
    pointwise_chunks<ConvPass::WeightGradient>(op_conv_dw),
};

}  // namespace

llvm::ArrayRef<CudaCandidate> pointwise_conv_candidates() { return pointwise_conv_table; }

}  // namespace plimsoll
