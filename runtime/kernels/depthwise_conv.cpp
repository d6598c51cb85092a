#include "kernels/cuda/conv/depthwise_columns.h"
#include "kernels/cuda/conv/depthwise_images.h"
#include "kernels/cuda/conv/depthwise_lines.h"
#include "kernels/cuda/conv/depthwise_packed.h"
#include "kernels/cuda/conv/depthwise_pairs.h"
#include "kernels/cuda/conv/depthwise_sparse.h"
#include "runtime/kernels/own_conv_prices.h"

// Our own convolutions of one channel each: without strides on the matrix units, small images as a whole; on the others
// by lines of pixels for any rectangle of taps, with a stride of 2 by windows in registers, and with anything.

namespace plimsoll {
namespace {

using cuda::ConvolutionSizes;

template <ConvPass pass>
bool accepts_depthwise_bands(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_any<pass>(call, results, false) && fits_depthwise_bands(sizes_of<pass>(call, results));
}

template <ConvPass pass>
bool accepts_depthwise_pairs(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_any<pass>(call, results, false) && fits_depthwise_pairs(sizes_of<pass>(call, results));
}

template <ConvPass pass>
bool accepts_depthwise_sparse(const OpCall& call, llvm::ArrayRef<Type> results) {
  if (!accepts_any<pass>(call, results, false)) return false;
  const ConvolutionSizes sizes = sizes_of<pass>(call, results);
  return pass == ConvPass::WeightGradient ? fits_depthwise_sparse_weights(sizes) : fits_depthwise_sparse(sizes);
}

template <ConvPass pass>
bool accepts_depthwise_images(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_any<pass>(call, results, false) && fits_depthwise_images(sizes_of<pass>(call, results));
}

bool accepts_depthwise_columns(const OpCall& call, llvm::ArrayRef<Type> results) {
  constexpr auto pass = ConvPass::WeightGradient;
  return accepts_any<pass>(call, results, false) && fits_depthwise_columns(sizes_of<pass>(call, results));
}

bool accepts_depthwise_packed(const OpCall& call, llvm::ArrayRef<Type> results) {
  constexpr auto pass = ConvPass::WeightGradient;
  return accepts_any<pass>(call, results, false) && fits_depthwise_packed(sizes_of<pass>(call, results));
}

template <ConvPass pass>
bool accepts_depthwise_lines(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_any<pass>(call, results, true) && fits_depthwise_lines(sizes_of<pass>(call, results));
}

template <ConvPass pass>
bool accepts_depthwise_windows(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_any<pass>(call, results, false) && fits_depthwise_windows(sizes_of<pass>(call, results));
}

template <ConvPass pass>
bool accepts_depthwise(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_any<pass>(call, results, true) && fits_depthwise(sizes_of<pass>(call, results));
}

int64_t depthwise_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  const ConvolutionSizes sizes = sizes_of<ConvPass::WeightGradient>(call, results);
  return cuda::DepthwiseRows(sizes, dtype_bytes(call.operand(0).dtype)).workspace_bytes(sizes);
}

// ---- Predictions ----

constexpr ConvRates band_rates{{0.82, 0.82, 1.29}, {0.39, 0.39, 0.142}, {4, 4, 6}};
// These copy pixels while they multiply, so that both together take less than their shares alone.
constexpr ConvRates pair_rates{{1.03, 1.03, 1}, {0.42, 0.42, 1}, {1, 1, 0}};
constexpr ConvRates strided_pair_rates{{0.94, 0.94, 1}, {0.42, 0.42, 1}, {1, 1, 0}};
// Products are hidden behind copies.
constexpr ConvRates sparse_rates{{0.91, 0.91, 0.9}, {1, 1, 1}, {0.2, 0.2, 1.3}};
constexpr ConvRates turned_rates{{1, 1, 0.855}, {1, 1, 1}, {0, 0, -0.7}};
constexpr ConvRates strided_sparse_rates{{1, 1, 1}, {1, 1, 1}, {0, 0, 1.3}};
constexpr ConvRates image_rates{{1.11, 1.11, 1}, {1, 1, 1}}, joined_image_rates{{1, 1, 1.22}, {1, 1, 1}};
constexpr ConvRates column_rates{{1, 1, 1.07}, {1, 1, 1}};
// Of instructions in place of products.
constexpr ConvRates line_rates{{0.8, 0.8, 1}, {0.593, 0.593, 0.692}, {0.5, 0.5, 1}};
constexpr ConvRates window_rates{{1.1, 1.0, 0.95}, {0.285, 0.34, 0.3}};
constexpr ConvRates depthwise_rates{{0.6, 0.6, 0.6}, {0.045, 0.045, 0.033}};

double pixels_of(const int (&size)[2], int64_t batch) { return static_cast<double>(batch) * size[0] * size[1]; }

// Whole products of 16 x 8 x 16 terms, of whose terms some count.
template <ConvPass pass>
double depthwise_bands_us(const OpCall& call, const DeviceDescription& device) {
  const Types results = llvm::cantFail(infer(call));
  const ConvolutionSizes c = sizes_of<pass>(call, results);
  constexpr double terms_of_product = 16 * 8 * 16;
  const double tflops = device.matmul_tflops_for(DType::BF16);
  const auto planes_of = [](const cuda::DepthwisePlanes& p) {
    return static_cast<double>(p.items) * p.unit_blocks * p.slots;
  };
  // Blocks of three units of a pixel read and write pieces of 48 bytes.
  const auto spread_of = [](const cuda::DepthwisePlanes& p) {
    return p.unit_blocks > 1 ? static_cast<double>(cuda::depthwise_units) / p.block_units : 1;
  };
  if (pass == ConvPass::WeightGradient) {
    const cuda::DepthwiseWeightBands t(c);
    const double products = planes_of(t) * (t.rows / t.row_block) * (t.columns / 16) * t.blocks_under(c.kernel[0]);
    return predicted<pass>(call, device, band_rates, tflops, products * terms_of_product, t.workspace_bytes(c),
                           spread_of(t));
  }
  const cuda::DepthwiseBands t(c, pass == ConvPass::InputGradient);
  const double products = planes_of(t) * (t.rows / 2) * (c.kernel[0] + 1);
  return predicted<pass>(call, device, band_rates, tflops, products * terms_of_product, 0, spread_of(t));
}

// Rows that the busiest multiprocessor goes down, whose products are hidden behind the copies or these behind them.
template <ConvPass pass>
double depthwise_pairs_us(const OpCall& call, const DeviceDescription& device) {
  const Types results = llvm::cantFail(infer(call));
  const ConvolutionSizes c = sizes_of<pass>(call, results);
  const cuda::DepthwisePairs p(c, pass == ConvPass::InputGradient);
  constexpr double terms_of_product = 16 * 8 * 16;
  const double rows = p.most_rows() * static_cast<double>(p.processors);
  const ConvRates& rates = c.stride[0] == 1 ? pair_rates : strided_pair_rates;
  const ConvTimes parts = parts_of(device, rates, pass, device.matmul_tflops_for(DType::BF16), rows * p.row_bytes(),
                                   rows * p.row_products() * p.warps * terms_of_product);
  return std::max(parts.copies, parts.products) + parts.launches;
}

// Bytes of the rows that the busiest multiprocessor goes down. Before the first one y and dx wait for each row of taps,
// and channels that are no whole boxes leave pixels that lie across more of the memory's lines than others.
template <ConvPass pass>
double depthwise_sparse_us(const OpCall& call, const DeviceDescription& device) {
  const Types results = llvm::cantFail(infer(call));
  const ConvolutionSizes c = sizes_of<pass>(call, results);
  const auto parts_of_plan = [&](const auto& p, const ConvRates& rates) {
    const int64_t rounds = divide_up(p.blocks(), p.processors);  // of many channels
    const double bytes = p.most_bytes() * static_cast<double>(rounds * p.processors);
    return parts_of(device, rates, pass, device.matmul_tflops_for(DType::BF16), bytes, 0);
  };
  if constexpr (pass == ConvPass::WeightGradient) {
    const cuda::DepthwiseSparseWeights p(c);
    const ConvTimes parts = parts_of_plan(p, p.turns()       ? turned_rates
                                             : p.stride == 1 ? sparse_rates
                                                             : strided_sparse_rates);
    return parts.copies + parts.launches;
  } else {
    constexpr double us_of_taps = 0.3, across_lines = 1.12;
    const cuda::DepthwiseSparse p(c, pass == ConvPass::InputGradient);
    const ConvTimes parts = parts_of_plan(p, sparse_rates);
    return parts.copies * (p.channels % p.block_channels == 0 ? 1 : across_lines) + us_of_taps * p.kernel +
           parts.launches;
  }
}

// Bytes of the busiest multiprocessor's images, or of all where the blocks of the same channels are joined; these wait
// for products, too. What rows of taps take is spent before the first product and behind the last one. Fitted to 24
// shapes of 1 x 1 to 8 x 8 pixels with 3 to 9 rows of taps.
template <ConvPass pass>
double depthwise_images_us(const OpCall& call, const DeviceDescription& device) {
  const Types results = llvm::cantFail(infer(call));
  const ConvolutionSizes c = sizes_of<pass>(call, results);
  const auto copies_us = [&](double images, double channels, const ConvRates& rates) {
    const double bytes = 2 * images * c.x[0] * c.x[1] * channels * 2;
    return parts_of(device, rates, pass, device.matmul_tflops_for(DType::BF16), bytes, 0).copies;
  };
  const auto of_busiest = [&](const auto& p, const ConvRates& rates) {
    const int64_t images = p.most_images() * p.rounds() * p.processors;
    return copies_us(static_cast<double>(images), p.block_channels, rates);
  };
  if constexpr (pass == ConvPass::WeightGradient) {
    constexpr double us_of_slot = 0.95, us_of_part = 0.06;
    const cuda::DepthwiseImageWeights p(c);
    if (p.joined) {
      constexpr double start_us = 1.8, us_of_row = 0.29;
      const auto slots = static_cast<double>(p.most_slots() * p.rounds());
      return device.launch_us + start_us + us_of_row * p.tap_rows + us_of_slot * slots +
             copies_us(static_cast<double>(c.batch), c.groups, joined_image_rates);
    }
    constexpr double start_us = 0.9, us_of_row = 0.36;
    return 2 * device.launch_us + start_us + us_of_row * p.tap_rows + us_of_part * p.splits +
           of_busiest(p, image_rates);
  } else {
    constexpr double start_us = 1.3, us_of_row = 0.16;
    const cuda::DepthwiseImages p(c, pass == ConvPass::InputGradient);
    return device.launch_us + start_us + us_of_row * p.tap_rows + of_busiest(p, image_rates);
  }
}

// Rows of the run, zeros and all; the products are hidden.
double depthwise_columns_us(const OpCall& call, const DeviceDescription& device) {
  constexpr auto pass = ConvPass::WeightGradient;
  const Types results = llvm::cantFail(infer(call));
  const ConvolutionSizes c = sizes_of<pass>(call, results);
  const cuda::DepthwiseColumns p(c);
  const auto rows = static_cast<double>(p.blocks() * (p.block_rows + c.kernel[0] - 1));
  const ConvTimes parts =
      parts_of(device, column_rates, pass, device.vector_tflops, 2 * 2 * rows * p.row_pixels * p.slots, 0);
  return parts.copies + parts.launches;
}

// Lines of the busiest block, those between stages twice. Before its first products a block waits for a whole stage,
// and each stage's products begin when the last of its lines is there. Fitted to 19 shapes of 8 to 112 pixels across.
double depthwise_packed_us(const OpCall& call, const DeviceDescription& device) {
  constexpr auto pass = ConvPass::WeightGradient;
  constexpr double start_us = 0.6, us_of_stage = 0.49, of_copy = 1.39, first_of_copy = 0.55, us_of_sum = 0.00113;
  const Types results = llvm::cantFail(infer(call));
  const ConvolutionSizes c = sizes_of<pass>(call, results);
  const cuda::DepthwisePacked p(c);
  const int64_t pairs = divide_up(p.pairs, p.splits), stages = divide_up(pairs, p.stage_pairs);
  const auto lines = static_cast<double>(p.splits * (4 * pairs + 2 * stages));
  const double bytes_of_us = device.memory_gb_per_s * 1e3;
  return 2 * device.launch_us + start_us + us_of_stage * static_cast<double>(stages) +
         lines * p.line_bytes / (bytes_of_us * of_copy) +
         static_cast<double>(p.stage_bytes() * p.processors) / (bytes_of_us * first_of_copy) +
         us_of_sum * static_cast<double>(c.weights());
}

template <ConvPass pass>
double depthwise_windows_us(const OpCall& call, const DeviceDescription& device) {
  const Types results = llvm::cantFail(infer(call));
  const ConvolutionSizes c = sizes_of<pass>(call, results);
  const int64_t workspace = pass == ConvPass::WeightGradient ? cuda::DepthwiseWeightWindows(c).workspace_bytes(c) : 0;
  const double products = pixels_of(c.y, c.batch) * c.groups * c.taps();
  return predicted<pass>(call, device, window_rates, device.vector_tflops, products, workspace);
}

// Instructions of threads or the bytes, each of which hides the other, fitted to 36 calls of 1 x 5 to 21 x 1 and 3 x 3
// to 7 x 7 taps. A thread loads, checks and widens pixels, and multiplies them by all taps of a piece.
template <ConvPass pass>
double depthwise_lines_us(const OpCall& call, const DeviceDescription& device) {
  const Types results = llvm::cantFail(infer(call));
  const ConvolutionSizes c = sizes_of<pass>(call, results);
  const ConvTypes types(pass, call, results);
  const auto bytes = static_cast<double>(types.x.bytes() + types.w.bytes() + types.y.bytes());
  const auto parts_for = [&](double instructions) {
    return parts_of(device, line_rates, pass, device.vector_tflops, bytes, instructions);
  };
  if constexpr (pass == ConvPass::WeightGradient) {
    constexpr int of_load = 8, of_step = 80, of_segment = 100;
    constexpr double us_of_part = 0.01;
    const cuda::DepthwiseLineWeights p(c);
    const auto steps = static_cast<int>(divide_up(p.segment, p.held));
    const int segment = steps * (of_step + p.held * (2 * (of_load + p.length) + p.held * p.length)) + of_segment;
    const ConvTimes parts = parts_for(static_cast<double>(p.items) * p.vectors * p.tap_rows * segment);
    // The second launch has few blocks and nothing to drain.
    return std::max(parts.copies, parts.products) + parts.launches - device.kernel_us +
           us_of_part * static_cast<double>(p.splits) +
           2 * static_cast<double>(p.workspace_bytes(c)) / (device.memory_gb_per_s * 1e3);
  } else {
    constexpr int of_load = 10, of_piece = 20, of_strip = 100;
    const cuda::DepthwiseLines p(c, pass == ConvPass::InputGradient);
    const int pixels = p.strip + p.held - 1;
    const int piece = pixels * (of_load + p.length) + p.held * (p.strip * p.length + 1) + of_piece;
    const ConvTimes parts = parts_for(static_cast<double>(p.items) * p.vectors * (p.tap_rows * piece + of_strip));
    return std::max(parts.copies, parts.products) + parts.launches;
  }
}

template <ConvPass pass>
double depthwise_us(const OpCall& call, const DeviceDescription& device) {
  const Types results = llvm::cantFail(infer(call));
  const ConvolutionSizes c = sizes_of<pass>(call, results);
  const int64_t element_bytes = dtype_bytes(call.operand(0).dtype);
  const int64_t workspace =
      pass == ConvPass::WeightGradient ? cuda::DepthwiseRows(c, static_cast<int>(element_bytes)).workspace_bytes(c) : 0;
  const double products = pixels_of(c.y, c.batch) * c.groups * c.taps();
  return predicted<pass>(call, device, depthwise_rates, device.vector_tflops, products, workspace);
}

template <ConvPass pass>
constexpr CudaCandidate depthwise_bands(const OpDef& op) {
  return {.op = op,
          .name = "depthwise_mma",
          .accepts = accepts_depthwise_bands<pass>,
          .workspace_bytes = pass == ConvPass::WeightGradient ? parts_workspace<cuda::DepthwiseWeightBands> : nullptr,
          .predicted_us = depthwise_bands_us<pass>};
}
template <ConvPass pass>
constexpr CudaCandidate depthwise_pairs(const OpDef& op) {
  return {.op = op,
          .name = "depthwise_pairs",
          .accepts = accepts_depthwise_pairs<pass>,
          .predicted_us = depthwise_pairs_us<pass>,
          .capability = 90};
}
template <ConvPass pass>
constexpr CudaCandidate depthwise_sparse(const OpDef& op) {
  return {.op = op,
          .name = "depthwise_sparse",
          .accepts = accepts_depthwise_sparse<pass>,
          .workspace_bytes = pass == ConvPass::WeightGradient ? parts_workspace<cuda::DepthwiseSparseWeights> : nullptr,
          .predicted_us = depthwise_sparse_us<pass>,
          .capability = 90};
}
template <ConvPass pass>
constexpr CudaCandidate depthwise_images(const OpDef& op) {
  return {.op = op,
          .name = "depthwise_images",
          .accepts = accepts_depthwise_images<pass>,
          .workspace_bytes = pass == ConvPass::WeightGradient ? parts_workspace<cuda::DepthwiseImageWeights> : nullptr,
          .predicted_us = depthwise_images_us<pass>,
          .capability = 90};
}
constexpr CudaCandidate depthwise_columns(const OpDef& op) {
  return {.op = op,
          .name = "depthwise_columns",
          .accepts = accepts_depthwise_columns,
          .workspace_bytes = parts_workspace<cuda::DepthwiseColumns>,
          .predicted_us = depthwise_columns_us,
          .capability = 90};
}
constexpr CudaCandidate depthwise_packed(const OpDef& op) {
  return {.op = op,
          .name = "depthwise_packed",
          .accepts = accepts_depthwise_packed,
          .workspace_bytes = parts_workspace<cuda::DepthwisePacked>,
          .predicted_us = depthwise_packed_us,
          .capability = 90};
}
template <ConvPass pass>
constexpr CudaCandidate depthwise_lines(const OpDef& op) {
  return {.op = op,
          .name = "depthwise_lines",
          .accepts = accepts_depthwise_lines<pass>,
          .workspace_bytes = pass == ConvPass::WeightGradient ? parts_workspace<cuda::DepthwiseLineWeights> : nullptr,
          .predicted_us = depthwise_lines_us<pass>};
}
template <ConvPass pass>
constexpr CudaCandidate depthwise_windows(const OpDef& op) {
  return {.op = op,
          .name = "depthwise_windows",
          .accepts = accepts_depthwise_windows<pass>,
          .workspace_bytes = pass == ConvPass::WeightGradient ? parts_workspace<cuda::DepthwiseWeightWindows> : nullptr,
          .predicted_us = depthwise_windows_us<pass>};
}
template <ConvPass pass>
constexpr CudaCandidate depthwise(const OpDef& op) {
  return {.op = op,
          .name = "depthwise",
          .accepts = accepts_depthwise<pass>,
          .workspace_bytes = pass == ConvPass::WeightGradient ? depthwise_workspace : nullptr,
          .predicted_us = depthwise_us<pass>};
}

constexpr CudaCandidate depthwise_conv_table[] = {
    depthwise_images<ConvPass::Forward>(op_conv),
    depthwise_images<ConvPass::InputGradient>(op_conv_dx),
    depthwise_images<ConvPass::WeightGradient>(op_conv_dw),
    depthwise_sparse<ConvPass::Forward>(op_conv),
    depthwise_sparse<ConvPass::InputGradient>(op_conv_dx),
    depthwise_sparse<ConvPass::WeightGradient>(op_conv_dw),
    depthwise_pairs<ConvPass::Forward>(op_conv),
    depthwise_pairs<ConvPass::InputGradient>(op_conv_dx),
    depthwise_columns(op_conv_dw),
    depthwise_packed(op_conv_dw),
    depthwise_bands<ConvPass::Forward>(op_conv),
    depthwise_bands<ConvPass::InputGradient>(op_conv_dx),
    depthwise_bands<ConvPass::WeightGradient>(op_conv_dw),
    depthwise_windows<ConvPass::Forward>(op_conv),
    depthwise_windows<ConvPass::InputGradient>(op_conv_dx),
    depthwise_windows<ConvPass::WeightGradient>(op_conv_dw),
    depthwise_lines<ConvPass::Forward>(op_conv),
    depthwise_lines<ConvPass::InputGradient>(op_conv_dx),
    depthwise_lines<ConvPass::WeightGradient>(op_conv_dw),
    depthwise<ConvPass::Forward>(op_conv),
    depthwise<ConvPass::InputGradient>(op_conv_dx),
    depthwise<ConvPass::WeightGradient>(op_conv_dw),
};

}  // namespace

llvm::ArrayRef<CudaCandidate> depthwise_conv_candidates() { return depthwise_conv_table; }

}  // namespace plimsoll
