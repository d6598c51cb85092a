#include "kernels/cuda/conv/grouped_bands.h"
#include "kernels/cuda/conv/grouped_lines.h"
#include "kernels/cuda/conv/grouped_runs.h"
#include "kernels/cuda/conv/grouped_squares.h"
#include "kernels/cuda/conv/grouped_stationary.h"
#include "kernels/cuda/conv/grouped_stationary_sums.h"
#include "kernels/cuda/conv/grouped_weight_runs.h"
#include "runtime/kernels/own_conv_prices.h"

// Our own convolutions of channels in groups, for which cuDNN's kernels take many times what their bytes do: on the
// matrix units, where groups are whole vectors of 16-bit floats.

namespace plimsoll {
namespace {

using cuda::ConvolutionSizes;

template <ConvPass pass>
bool accepts_grouped(const OpCall& call, llvm::ArrayRef<Type> results) {
  if (!accepts_any<pass>(call, results, false)) return false;
  const ConvolutionSizes sizes = sizes_of<pass>(call, results);
  if (!fits_grouped_tiles(sizes)) return false;
  if (pass == ConvPass::WeightGradient) return fits(cuda::GroupedWeightTiles(sizes));
  return fits(cuda::GroupedTiles(sizes, pass == ConvPass::InputGradient));
}

template <ConvPass pass>
bool accepts_grouped_runs(const OpCall& call, llvm::ArrayRef<Type> results) {
  if (!accepts_any<pass>(call, results, false)) return false;
  const ConvolutionSizes sizes = sizes_of<pass>(call, results);
  if (pass == ConvPass::WeightGradient) return fits_grouped_weight_runs(sizes);
  return fits_grouped_runs(sizes, pass == ConvPass::InputGradient);
}

constexpr cuda::LinesPass lines_pass(ConvPass pass) {
  return pass == ConvPass::Forward         ? cuda::LinesPass::Output
         : pass == ConvPass::InputGradient ? cuda::LinesPass::InputGradient
                                           : cuda::LinesPass::WeightGradient;
}

template <ConvPass pass>
bool accepts_grouped_lines(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_any<pass>(call, results, false) && fits_grouped_lines(sizes_of<pass>(call, results), lines_pass(pass));
}

template <ConvPass pass>
bool accepts_grouped_bands(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_any<pass>(call, results, false) &&
         fits_grouped_bands(sizes_of<pass>(call, results), pass == ConvPass::WeightGradient);
}

bool accepts_grouped_squares(const OpCall& call, llvm::ArrayRef<Type> results) {
  constexpr auto pass = ConvPass::InputGradient;
  return accepts_any<pass>(call, results, false) && fits_grouped_squares(sizes_of<pass>(call, results));
}

template <ConvPass pass>
bool accepts_grouped_stationary(const OpCall& call, llvm::ArrayRef<Type> results) {
  if (!accepts_any<pass>(call, results, false)) return false;
  const ConvolutionSizes sizes = sizes_of<pass>(call, results);
  if (pass == ConvPass::WeightGradient) return fits_grouped_stationary_sums(sizes);
  return fits_grouped_stationary(sizes, pass == ConvPass::InputGradient);
}

int64_t lines_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  const ConvolutionSizes sizes = sizes_of<ConvPass::WeightGradient>(call, results);
  return cuda::GroupedLines(sizes, cuda::LinesPass::WeightGradient).workspace_bytes(sizes);
}
int64_t bands_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  const ConvolutionSizes sizes = sizes_of<ConvPass::WeightGradient>(call, results);
  return cuda::GroupedBands(sizes, true).workspace_bytes(sizes);
}

// ---- Predictions ----

constexpr ConvRates grouped_rates{{0.6, 0.5, 0.6}, {0.13, 0.13, 0.13}};
constexpr ConvRates run_rates{{0.48, 0.46, 0.62}, {1.25, 1.35, 0.82}, {2.5, 2.5, 8}};
// Lines come while those before are multiplied, and zeros count as bytes.
constexpr ConvRates line_rates{{0.88, 0.88, 0.9}, {0.95, 0.95, 1.0}, {3, 3, 6}};
constexpr ConvRates square_rates{{1, 0.92, 1}, {1, 1.4, 1}, {0, 1.8, 0}};
// Copies and products run beside each other.
constexpr ConvRates stationary_square_rates{{1, 0.92, 1}, {1, 0.75, 1}, {0, 2, 0}};  // of dx with strides
constexpr ConvRates stationary_rates{{1, 1, 0.96}, {1.05, 1.05, 1.18}, {2, 2, 0.3}};
// Products of whole tiles: pixels that a tile has in vain, and channels up to a count that kernels exist for.
template <ConvPass pass>
double grouped_us(const OpCall& call, const DeviceDescription& device) {
  const Types results = llvm::cantFail(infer(call));
  const ConvolutionSizes c = sizes_of<pass>(call, results);
  const double tflops = device.matmul_tflops_for(DType::BF16), taps = c.taps();
  if (pass == ConvPass::WeightGradient) {
    const cuda::GroupedWeightTiles t(c);
    const double products = static_cast<double>(t.items) * t.pixels * c.groups * taps * c.x_channels * t.unit_tiles *
                            t.y_parts * cuda::unit_channels;
    return predicted<pass>(call, device, grouped_rates, tflops, products, t.workspace_bytes(c));
  }
  const cuda::GroupedTiles t(c, pass == ConvPass::InputGradient);
  const double all_taps = pass == ConvPass::InputGradient ? taps / (t.axes.classes[0] * t.axes.classes[1]) : taps;
  const double products = static_cast<double>(t.items) * (t.axes.classes[0] * t.axes.classes[1] * t.out_parts) *
                          t.pixels * c.groups * all_taps * t.in_units * t.unit_tiles * cuda::unit_channels *
                          cuda::unit_channels;
  return predicted<pass>(call, device, grouped_rates, tflops, products, 0);
}

// Of runs without groups, fitted to 160 calls of HRNet's and other shapes on an H200: blocks of another part read an
// image again, words shorter than a unit take as long as longer ones, and a block waits for its weights. By the margin
// cuDNN goes before at weight gradients where both are as quick.
struct WholeRuns {
  double read_bytes, written_bytes, ragged_bytes, products, weight_bytes = 0;
};

// Bytes that whole units would have beyond those of words.
double ragged_bytes(double bytes, int word_bytes) {
  constexpr double unit_bytes = 16;
  return bytes * (unit_bytes / word_bytes - 1);
}

template <ConvPass pass>
WholeRuns whole_runs(const ConvolutionSizes& c, const ConvTypes& types) {
  const auto x_bytes = static_cast<double>(types.x.bytes()), y_bytes = static_cast<double>(types.y.bytes());
  if constexpr (pass == ConvPass::WeightGradient) {
    const cuda::GroupedWeightRuns p(c);
    const double x_read = x_bytes * p.y_parts, y_read = y_bytes * p.x_parts;
    return {.read_bytes = x_read + y_read,
            .written_bytes = 2 * static_cast<double>(p.workspace_bytes(c)),
            .ragged_bytes = ragged_bytes(x_read, p.x_word_bytes) + ragged_bytes(y_read, p.y_word_bytes),
            .products = p.whole_products()};
  } else {
    constexpr bool gradient = pass == ConvPass::InputGradient;
    const cuda::GroupedRuns p(c, gradient);
    const double read = (gradient ? y_bytes : x_bytes) * p.out_parts, written = gradient ? x_bytes : y_bytes;
    return {.read_bytes = read,
            .written_bytes = written,
            .ragged_bytes = ragged_bytes(read, p.in_word_bytes) + ragged_bytes(written, p.out_word_bytes),
            .products = p.whole_products(),
            .weight_bytes = 16.0 * p.weight_units};
  }
}

template <ConvPass pass>
double whole_runs_us(const ConvolutionSizes& c, const ConvTypes& types, const DeviceDescription& device,
                     double terms_of_product) {
  constexpr bool is_dw = pass == ConvPass::WeightGradient;
  constexpr double margin = is_dw ? 1.1 : 1, read_times = is_dw ? 2 : 1.9, written_times = is_dw ? 1.4 : 1.2,
                   ragged_times = is_dw ? 0.5 : 0.45, product_times = is_dw ? 0.38 : 1.25, weight_bytes_per_us = 12'400,
                   start_us = is_dw ? 0.1 : 0.6;
  const double tflops = device.matmul_tflops_for(DType::BF16);
  if (device.memory_gb_per_s <= 0 || tflops <= 0) return 0;
  const WholeRuns runs = whole_runs<pass>(c, types);
  const double copy_bytes =
      read_times * runs.read_bytes + written_times * runs.written_bytes + ragged_times * runs.ragged_bytes;
  const double us = copy_bytes / (device.memory_gb_per_s * 1e3) +
                    product_times * 2 * runs.products * terms_of_product / (tflops * 1e6) +
                    runs.weight_bytes / weight_bytes_per_us;
  return margin * us + (is_dw ? 2 : 1) * (device.launch_us + device.kernel_us) + start_us;
}

template <ConvPass pass>
double grouped_runs_us(const OpCall& call, const DeviceDescription& device) {
  const Types results = llvm::cantFail(infer(call));
  const ConvolutionSizes c = sizes_of<pass>(call, results);
  constexpr double terms_of_product = 64 * 64 * 16;
  if (c.groups == 1) return whole_runs_us<pass>(c, ConvTypes(pass, call, results), device, terms_of_product);
  double products = 0;
  int64_t workspace_bytes = 0;
  if (pass == ConvPass::WeightGradient) {
    const cuda::GroupedWeightRuns p(c);
    products = p.whole_products(), workspace_bytes = p.workspace_bytes(c);
  } else {
    products = cuda::GroupedRuns(c, pass == ConvPass::InputGradient).whole_products();
  }
  return predicted<pass>(call, device, run_rates, device.matmul_tflops_for(DType::BF16), products * terms_of_product,
                         workspace_bytes);
}

// Whole lines of pixels of whole blocks' groups, zeros and all, and products of 16 x 8 x 16 terms.
template <ConvPass pass>
double grouped_lines_us(const OpCall& call, const DeviceDescription& device) {
  const Types results = llvm::cantFail(infer(call));
  const ConvolutionSizes c = sizes_of<pass>(call, results);
  const cuda::GroupedLines p(c, lines_pass(pass));
  constexpr double terms_of_product = 16 * 8 * 16, bytes_of_unit = 16;
  const double lines = static_cast<double>(c.batch) * p.image_lines * p.line_pixels;
  const double groups = double{1} * p.channel_blocks * p.warps.block_groups;
  const double units = (lines + p.pixels) * groups * p.units;
  const double workspace = pass == ConvPass::WeightGradient ? static_cast<double>(p.workspace_bytes(c)) : 0;
  const double products = p.pixels / 16.0 * groups * cuda::GroupedLines::pairs(p.units) * p.units;
  const ConvTimes parts = parts_of(device, line_rates, pass, device.matmul_tflops_for(DType::BF16),
                                   units * bytes_of_unit + 2 * workspace, products * terms_of_product);
  return parts.copies + parts.products + parts.launches;
}

// The microseconds that a block takes for a band of whole lines or of boxes of its channels, fitted to 18 shapes on an
// H200. Boxes take so many cycles for each of their pixels, in and out, and a narrow band takes as long as one of 16.
template <bool is_dw>
double band_us(const cuda::GroupedBands& p, double cycle_us, double bytes_per_us) {
  using Bands = cuda::GroupedBands;
  const double pixels = 2.0 * Bands::band_lines * p.pixels;  // of both images
  const double bytes_us = pixels * Bands::pixel_bytes * Bands::wanted_blocks / bytes_per_us;
  if (is_dw) {
    constexpr double cycles_of_band = 950, cycles_of_pixel = 6.3;
    return std::max((cycles_of_band + cycles_of_pixel * pixels) * cycle_us, bytes_us);
  }
  constexpr double share_of_copy = 0.895, fewest_cycles = 1315;
  if (p.copies_lines()) return std::max(bytes_us / share_of_copy, fewest_cycles * cycle_us);
  constexpr double cycles_of_pixel = 4.1, cycles_of_channel = 0.082;
  const int channels = std::min(p.groups * Bands::group_channels, Bands::block_channels);
  return std::max((cycles_of_pixel + cycles_of_channel * channels) * pixels, fewest_cycles) * cycle_us;
}

// The bands of the block that has most. Of whole lines, which come quicker than they are multiplied, the first and the
// last bands are not hidden.
template <ConvPass pass>
double grouped_bands_us(const OpCall& call, const DeviceDescription& device) {
  const Types results = llvm::cantFail(infer(call));
  const ConvolutionSizes c = sizes_of<pass>(call, results);
  constexpr bool is_dw = pass == ConvPass::WeightGradient;
  const cuda::GroupedBands p(c, is_dw);
  constexpr double flops_per_cycle = 4096;  // of a multiprocessor
  constexpr double hidden_bands = is_dw ? 0 : 3;
  const double tflops = device.matmul_tflops_for(DType::BF16);
  if (tflops <= 0 || device.memory_gb_per_s <= 0) return 0;
  const double cycle_us = flops_per_cycle * cuda::GroupedBands::wanted_blocks / (tflops * 1e6);
  const double of_band = band_us<is_dw>(p, cycle_us, device.memory_gb_per_s * 1e3);
  const double start_us = is_dw ? (p.copies_lines() ? 9.5 : 7.4) : p.copies_lines() ? 1.5 : 2.1;
  const auto bands = static_cast<double>(divide_up(p.bands, p.splits));
  const int launches = is_dw ? 2 : 1;
  return launches * (device.launch_us + device.kernel_us) + start_us +
         (bands + (p.copies_lines() ? hidden_bands : 0)) * of_band;
}

// Whole tiles of 16 squares, of whole blocks' groups.
double grouped_squares_us(const OpCall& call, const DeviceDescription& device) {
  const Types results = llvm::cantFail(infer(call));
  const cuda::GroupedSquares p(sizes_of<ConvPass::InputGradient>(call, results));
  constexpr double terms_of_product = 16 * 8 * 16;
  const double products = static_cast<double>(p.tiles) * p.channel_blocks * p.block_groups * p.products();
  return predicted<ConvPass::InputGradient>(call, device, square_rates, device.matmul_tflops_for(DType::BF16),
                                            products * terms_of_product, 0);
}

// How many times as long bytes take where blocks begin or end within what memory reads at once, 64 bytes, or within
// sectors of 32, which are written in pieces. Of many blocks of channels the ones beside each other go on alike, and
// find such sectors in the second-level cache.
double spread_of_blocks(const cuda::StationaryImages& p, bool is_dw) {
  if (p.channel_blocks == 1) return 1;
  constexpr int sector_channels = 16;
  const bool makes_squares = p.scale > 1;
  const auto is_whole = [&](int channels) {
    return p.channels() % channels == 0 && p.channels_of_block() % channels == 0;
  };
  if (is_whole(2 * sector_channels)) return 1;
  if (is_whole(sector_channels)) return is_dw || makes_squares ? 1.1 : 1.25;
  if (is_dw) return 1.1 + 1.9 * p.stride / p.channel_blocks;
  return makes_squares ? std::min(1 + 150.0 / (double{1} * p.channel_blocks * p.channel_blocks), 3.4)
                       : std::clamp(0.85 + 7.0 / p.channel_blocks, 1.0, 2.2);
}

// The time in which the copy engine brings pixels, however short they are: of one block of channels, those that end
// within a sector take longer.
double pixels_us(const cuda::StationaryImages& p, double pixels, bool is_dw, const DeviceDescription& device) {
  constexpr double flops_per_cycle = 4096;  // of a multiprocessor
  constexpr int sector_channels = 16;
  const double tflops = device.matmul_tflops_for(DType::BF16);
  if (tflops <= 0) return 0;
  const bool is_ragged = p.channel_blocks == 1 && p.channels() % sector_channels != 0;
  const double cycles = is_dw ? (is_ragged ? 6.1 : 3.6) : (is_ragged ? 10 : 5);
  return cycles * pixels * flops_per_cycle / (tflops * 1e6);
}

// Whole products of 64 rows by 16 terms, and parts of weight gradients.
template <ConvPass pass>
double grouped_stationary_us(const OpCall& call, const DeviceDescription& device) {
  const Types results = llvm::cantFail(infer(call));
  const ConvolutionSizes c = sizes_of<pass>(call, results);
  const ConvTypes types(pass, call, results);
  constexpr bool is_dw = pass == ConvPass::WeightGradient;
  constexpr double terms_of_column = 64 * 16, exposed = is_dw ? 0.18 : 0.05, of_workspace = 1.25;
  const auto bytes = static_cast<double>(types.x.bytes() + types.w.bytes() + types.y.bytes());
  const auto predict = [&](const auto& p, double products, int64_t workspace_bytes) {
    const double tflops = device.matmul_tflops_for(DType::BF16);
    const auto parts = [&](double of_bytes, double of_products) {
      const ConvRates& rates = p.scale > 1 ? stationary_square_rates : stationary_rates;
      return parts_of(device, rates, pass, tflops, of_bytes, of_products);
    };
    ConvTimes both = parts(bytes * spread_of_blocks(p, is_dw), products * terms_of_column);
    both.copies = std::max(both.copies, pixels_us(p, p.pixels_read(), is_dw, device));
    return std::max(both.copies, both.products) + exposed * std::min(both.copies, both.products) +
           parts(2 * static_cast<double>(workspace_bytes) / of_workspace, 0).copies + both.launches;
  };
  if constexpr (is_dw) {
    const cuda::GroupedStationarySums p(c);
    return predict(p, p.products() * p.columns(), p.workspace_bytes(c));
  } else {
    const cuda::GroupedStationary p(c, pass == ConvPass::InputGradient);
    return predict(p, p.products() * p.columns, 0);
  }
}

template <ConvPass pass>
constexpr CudaCandidate grouped(const OpDef& op) {
  return {.op = op,
          .name = "grouped_mma",
          .accepts = accepts_grouped<pass>,
          .workspace_bytes = pass == ConvPass::WeightGradient ? parts_workspace<cuda::GroupedWeightTiles> : nullptr,
          .predicted_us = grouped_us<pass>};
}
template <ConvPass pass>
constexpr CudaCandidate grouped_runs(const OpDef& op) {
  return {.op = op,
          .name = "grouped_runs",
          .accepts = accepts_grouped_runs<pass>,
          .workspace_bytes = pass == ConvPass::WeightGradient ? parts_workspace<cuda::GroupedWeightRuns> : nullptr,
          .predicted_us = grouped_runs_us<pass>,
          .capability = 90};
}
template <ConvPass pass>
constexpr CudaCandidate grouped_lines(const OpDef& op) {
  return {.op = op,
          .name = "grouped_lines",
          .accepts = accepts_grouped_lines<pass>,
          .workspace_bytes = pass == ConvPass::WeightGradient ? lines_workspace : nullptr,
          .predicted_us = grouped_lines_us<pass>,
          .capability = 90};
}
template <ConvPass pass>
constexpr CudaCandidate grouped_bands(const OpDef& op) {
  return {.op = op,
          .name = "grouped_bands",
          .accepts = accepts_grouped_bands<pass>,
          .workspace_bytes = pass == ConvPass::WeightGradient ? bands_workspace : nullptr,
          .predicted_us = grouped_bands_us<pass>,
          .capability = 90};
}
constexpr CudaCandidate grouped_squares(const OpDef& op) {
  return {.op = op,
          .name = "grouped_squares",
          .accepts = accepts_grouped_squares,
          .predicted_us = grouped_squares_us,
          .capability = 90};
}
template <ConvPass pass>
constexpr CudaCandidate grouped_stationary(const OpDef& op) {
  return {.op = op,
          .name = "grouped_stationary",
          .accepts = accepts_grouped_stationary<pass>,
          .workspace_bytes = pass == ConvPass::WeightGradient ? parts_workspace<cuda::GroupedStationarySums> : nullptr,
          .predicted_us = grouped_stationary_us<pass>,
          .capability = 90};
}
constexpr CudaCandidate grouped_conv_table[] = {
    grouped<ConvPass::Forward>(op_conv),
    grouped<ConvPass::InputGradient>(op_conv_dx),
    grouped<ConvPass::WeightGradient>(op_conv_dw),
    grouped_lines<ConvPass::Forward>(op_conv),
    grouped_lines<ConvPass::InputGradient>(op_conv_dx),
    grouped_lines<ConvPass::WeightGradient>(op_conv_dw),
    grouped_bands<ConvPass::Forward>(op_conv),
    grouped_bands<ConvPass::InputGradient>(op_conv_dx),
    grouped_bands<ConvPass::WeightGradient>(op_conv_dw),
    grouped_squares(op_conv_dx),
    grouped_stationary<ConvPass::Forward>(op_conv),
    grouped_stationary<ConvPass::InputGradient>(op_conv_dx),
    grouped_stationary<ConvPass::WeightGradient>(op_conv_dw),
    grouped_runs<ConvPass::Forward>(op_conv),
    grouped_runs<ConvPass::InputGradient>(op_conv_dx),
    grouped_runs<ConvPass::WeightGradient>(op_conv_dw),
};

}  // namespace

llvm::ArrayRef<CudaCandidate> grouped_conv_candidates() { return grouped_conv_table; }

}  // namespace plimsoll
