#include "runtime/kernels/matmul.h"

#include "ir/f8_scales.h"
#include "kernels/cuda/matmul/finished_sizes.h"
#include "kernels/division.h"
#include "runtime/kernels/elementwise.h"
#include "runtime/kernels/few_rows_matmul.h"
#include "runtime/kernels/left_matmul.h"
#include "runtime/kernels/narrow_matmul.h"
#include "runtime/kernels/reduce.h"

namespace plimsoll {

LoopNest<3> matmul_batch(const Type& y, const Type& a, const Type& b) {
  auto batch_of = [](const Type& type) { return llvm::ArrayRef<int64_t>(type.shape).drop_back(2); };
  auto steps_of = [&](const Type& type) {
    Shape steps = broadcast_steps(batch_of(type), batch_of(y));
    for (int64_t& step : steps) step *= type.shape[type.rank() - 1] * type.shape[type.rank() - 2];
    return steps;
  };
  const Shape y_steps = steps_of(y), a_steps = steps_of(a), b_steps = steps_of(b);
  LoopNest<3> batch;
  for (size_t d = 0; d < y_steps.size(); ++d) batch.add_dimension(y.shape[d], {y_steps[d], a_steps[d], b_steps[d]});
  return batch;
}

cuda::WeightGradientSizes weight_gradient_sizes(const OpCall& call) {
  const WeightGradientSides sides(call);
  return {.rows = call[sides.left].shape.back(),
          .columns = call[sides.right].shape.back(),
          .depth = rows_of(call["x"]),
          .left_is_dy = call.get_int("transpose_w") != 0};
}

namespace {

// Operands of one float dtype and nothing empty. The result may be f32 where the operands have 16 bits; inference has
// seen that an addend, behind the `factors`, is of the result's type.
template <size_t factors>
bool accepts_matmul(const OpCall& call, llvm::ArrayRef<Type> results) {
  const DType dtype = call.operand(0).dtype, y = results[0].dtype;
  if (!computes_in_f32(dtype) && dtype != DType::F64) return false;
  if (y != dtype && !(y == DType::F32 && is_16_bit_float(dtype))) return false;
  for (size_t i = 0; i < factors; ++i)
    if (call.has(i) && (call.operand(i).dtype != dtype || call.operand(i).elements() == 0)) return false;
  return results[0].elements() > 0;
}

// Where no epilogue sums dy for the bias, a reduction does.
cuda::ReductionPlan bias_sums(const Type& dy) { return {row_sums(dy), dtype_bytes(dy.dtype)}; }

bool accepts_weight_gradient(const OpCall& call, llvm::ArrayRef<Type> results) {
  if (!accepts_matmul<2>(call, results)) return false;
  if (results.size() == 1) return true;
  const cuda::ReductionPlan sums = bias_sums(call["dy"]);
  return call["dy"].dtype != DType::F64 && sums.parts() * sums.outputs() <= INT32_MAX;
}

// Are the first operands matrices of 16-bit elements whose rows begin at 16-byte borders? Epilogues want that.
bool has_aligned_rows(const OpCall& call, size_t matrices) {
  for (size_t i = 0; i < matrices; ++i)
    if (call.operand(i).shape.back() % product_alignment != 0) return false;
  return is_16_bit_float(call.operand(0).dtype);
}

bool accepts_bgrad(const OpCall& call, llvm::ArrayRef<Type> results) {
  return results.size() == 2 && accepts_matmul<2>(call, results) && has_aligned_rows(call, 2);
}

// The copying unit counts rows in 32 bits.
bool accepts_warpgroup_bgrad(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_bgrad(call, results) && rows_of(call["x"]) <= INT32_MAX - cuda::WeightGradientTiles::step;
}

// Small weights and few rows, up to what was timed, and whole words of columns; a block has up to 64 x 64 elements of
// dw and goes over all rows.
constexpr int64_t most_few_rows = 256, most_of_small_weight = 3 << 19;

bool accepts_few_rows(const OpCall& call, llvm::ArrayRef<Type> results) {
  const Type &x = call["x"], &dy = call["dy"];
  const auto is_result = [&](const Type& type) { return type.dtype == DType::F32 || type.dtype == x.dtype; };
  return accepts_matmul<2>(call, results) && is_16_bit_float(x.dtype) && !call.attrs.has("columns") &&
         rows_of(x) <= most_few_rows && results[0].elements() <= most_of_small_weight && x.shape.back() % 2 == 0 &&
         dy.shape.back() % 2 == 0 && llvm::all_of(results, is_result);
}

bool accepts_narrow_linear(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_matmul<3>(call, results) && is_narrow_linear(call, results);
}

bool accepts_narrow_gradient(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_matmul<2>(call, results) && is_narrow_gradient(call, results);
}

// Where dy has more columns than are asked for, and these are an odd number.
bool accepts_split_gradient(const OpCall& call, llvm::ArrayRef<Type> results) {
  if (!call.attrs.has("columns") || !accepts_matmul<2>(call, results)) return false;
  const int64_t columns = call.get_int("columns");
  return has_aligned_rows(call, 2) && columns % product_alignment != 0 && columns > product_alignment;
}

bool accepts_gelu_grad(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_matmul<3>(call, results) && call["dy"].dtype != DType::F64;
}

// The copying unit counts rows in 32 bits; of all tiles, too, there are fewer.
bool is_in_tiles(const Type& result) {
  constexpr int64_t most = INT32_MAX / 2;
  return rows_of(result) <= most && result.shape.back() <= most;
}

// Rows of whole 16-byte words.
bool accepts_warpgroup_gelu(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_matmul<3>(call, results) && has_aligned_rows(call, 3) && is_in_tiles(results[0]);
}

bool accepts_linear_gelu(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_matmul<3>(call, results) && call["x"].dtype != DType::F64;
}

// Layers whose operands come in whole boxes of the copy engine, or in halves or quarters of them, and whose sums are
// shorter than their way to memory.
constexpr int64_t short_depth = 256, many_rows = 32768;

bool is_of_short_sums(const Type& x) {
  constexpr int64_t least_depth = 32, depth_multiple = 16;
  const int64_t depth = x.shape.back();
  return is_16_bit_float(x.dtype) && depth >= least_depth && depth <= short_depth && depth % depth_multiple == 0;
}

bool accepts_short_sums(const OpCall& call, llvm::ArrayRef<Type> results) {
  const Type& y = results[0];
  return accepts_matmul<3>(call, results) && is_of_short_sums(call["x"]) && has_aligned_rows(call, 2) &&
         y.dtype == call["x"].dtype && y.shape.back() % product_alignment == 0 && !call.has("addend") && is_in_tiles(y);
}

bool accepts_warpgroup_linear_gelu(const OpCall& call, llvm::ArrayRef<Type> results) {
  const Type& h = results[0];
  return accepts_linear_gelu(call, results) && has_aligned_rows(call, 2) && h.shape.back() % product_alignment == 0 &&
         is_in_tiles(h);
}

// The library knows gelu's tanh form alone.
bool accepts_dgelu(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_matmul<3>(call, results) && has_aligned_rows(call, 3) && is_tanh_form(call);
}

F8Scales scales_of(const OpCall& call, PortKey codes, PortKey scales) {
  return *f8_scales_of(call[scales], rows_of(call[codes]), call[codes].shape.back());
}

// Matrix units read rows of 8-bit floats from 16-byte borders on; the library adds a bias of 16 bits alone.
bool accepts_codes(const OpCall& call, llvm::ArrayRef<Type> results) {
  constexpr int64_t multiple = 16;
  const Type &x = call["x"], &w = call["w"];
  if (results[0].elements() == 0 || x.elements() == 0) return false;
  if (call.has("bias") && results[0].dtype == DType::F32) return false;
  return rows_of(x) % multiple == 0 && w.shape[0] % multiple == 0 && w.shape[1] % multiple == 0;
}

bool accepts_linear_f8(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_codes(call, results) && scales_of(call, "x", "x_scale") == F8Scales::Tensor &&
         scales_of(call, "w", "w_scale") == F8Scales::Tensor;
}

// Rows on both sides, or blocks with blocks or tiles.
bool accepts_many_scales(const OpCall& call, llvm::ArrayRef<Type> results) {
  const F8Scales x = scales_of(call, "x", "x_scale"), w = scales_of(call, "w", "w_scale");
  if (!accepts_codes(call, results) || x == F8Scales::Tensor || w == F8Scales::Tensor) return false;
  if (x == F8Scales::Rows || w == F8Scales::Rows) return x == w;
  return x == F8Scales::Blocks || w == F8Scales::Blocks;
}

int64_t matmul_workspace(const OpCall&, llvm::ArrayRef<Type>, const DeviceDescription& device) {
  return device.product_workspace_bytes;
}

int64_t weight_gradient_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device) {
  const int64_t sums =
      results.size() == 1 ? 0 : bias_sums(call["dy"]).workspace() * static_cast<int64_t>(sizeof(float));
  return std::max(device.product_workspace_bytes, sums);
}

// As the plan's device would divide it, within what the library gets.
cuda::WeightGradientTiles weight_gradient_tiles(const OpCall& call, const DeviceDescription& device) {
  return cuda::choose_weight_gradient_tiles(weight_gradient_sizes(call), std::max(device.multiprocessors, 1),
                                            device.product_workspace_bytes / static_cast<int64_t>(sizeof(float)));
}

int64_t warpgroup_bgrad_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription& device) {
  return weight_gradient_tiles(call, device).workspace() * static_cast<int64_t>(sizeof(float));
}

// ---- Predictions, fitted to 160 shapes of 16-bit operands that were measured on an H200 ----

// How much longer the library takes where rows of 16-bit operands begin at 8-byte borders, or at odd ones: its kernels
// load 16 bytes at a time.
double slowdown_of_odd_rows(DType dtype, int64_t one_length, int64_t other_length) {
  const int64_t lengths = one_length | other_length;
  if (lengths % product_alignment == 0 || !is_16_bit_float(dtype)) return 1;
  return lengths % 4 == 0 ? 3 : 4;
}

double copy_us(int64_t bytes, const DeviceDescription& device) {
  return static_cast<double>(bytes) / (device.memory_gb_per_s * 1e3);
}

// 2 m n k operations, at the share of the roofline that is known for an op.
double product_us(const OpCall& call, const DeviceDescription& device, int64_t m, int64_t n, int64_t k,
                  int64_t result_bytes, llvm::StringRef op) {
  const DType dtype = call.operand(0).dtype;
  const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  const int64_t bytes = (m + n) * k * dtype_bytes(dtype) + result_bytes;
  return device.roofline_us(flops, bytes, dtype) / device.efficiency_of(op);
}

double product_us(const OpCall& call, const DeviceDescription& device, int64_t m, int64_t n, int64_t k,
                  int64_t result_bytes) {
  return product_us(call, device, m, n, k, result_bytes, call.op.name);
}

// Odd rows make even a product slow that memory bounds: of 64 products of [499,64] by [64,997] and their gradients the
// library takes 73 to 241 us, of aligned ones 20; of 16,384 of [27,128] by [128,27] and theirs 185 and 220.
// The library multiplies a batch whose matrices are equally far apart in one launch; a batch of several strides is so
// many calls, of which a stream takes one in 3.4 us (512 of 256 and of 64 matrices of one row: 1.65 to 1.94 ms). A tile
// of a small matrix takes its time whatever it holds, as measured with 2048 to 75,264 matrices of 9 to 196 rows. One
// matrix at the left of 128 takes 1.3 to 1.8 times what the bytes would.
double matmul_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double odd_tflops = 25, call_us = 3.4, tile_us = 2.6e-3, tile_step_us = 0.6e-3, one_left = 1.4;
  constexpr int64_t tile = 64, step = 32, small_side = 32;
  const Type &a = call["a"], &b = call["b"];
  const Types results = llvm::cantFail(infer(call));
  const double flops = op_matmul.flops(call, results);
  const bool has_one_left = is_16_bit_float(a.dtype) && a.elements() > 0 && a.rank() >= 2 && results[0].rank() > 2 &&
                            a.elements() == a.shape[a.rank() - 1] * a.shape[a.rank() - 2] && a.rank() < b.rank();
  const double us = device.roofline_us(flops, moved_bytes(call, results), a.dtype) / device.efficiency_of("matmul") *
                    (has_one_left ? one_left : 1);
  const bool is_odd = slowdown_of_odd_rows(a.dtype, a.shape.back() | b.shape.back(), results[0].shape.back()) > 1;
  const LoopNest<3> batch = collapse(matmul_batch(results[0], a, b));
  const auto calls = static_cast<double>(batch.iterations() / batch.sizes[batch.rank - 1]);
  const int64_t rows = results[0].shape[results[0].shape.size() - 2], columns = results[0].shape.back(),
                inner = call.get_int("transpose_a") != 0 ? a.shape[a.shape.size() - 2] : a.shape.back();
  double tiles_us = 0;
  if (std::min(rows, columns) <= small_side && device.multiprocessors > 0)
    tiles_us = static_cast<double>(results[0].elements() / (rows * columns) * divide_up(rows, tile) *
                                   divide_up(columns, tile)) *
               (tile_us + tile_step_us * static_cast<double>(divide_up(inner, step)));
  return std::max({us, is_odd ? flops / (odd_tflops * 1e6) : 0, tiles_us}) +
         (calls > 1 ? call_us * calls : device.beside_us(us));
}

// Of x and w, with a bias or without. A part of the way of `moved` bytes of results and addends to memory, or from
// there, is not hidden behind the products.
double biased_product_us(const OpCall& call, const DeviceDescription& device, int64_t moved) {
  constexpr double not_hidden = 0.4;
  const Type &x = call["x"], &w = call["w"];
  const int64_t k = x.shape.back(), n = w.elements() / std::max<int64_t>(k, 1);
  const double us = product_us(call, device, rows_of(x), n, k, moved, "linear");
  // Of a result with few tiles parts of long sums are made apart and added, as measured in an LSTM's step on an H200.
  constexpr double split_us = 2.2;
  constexpr int64_t tile = 128, long_sum = 1024;
  const bool splits = k >= long_sum && 2 * divide_up(rows_of(x), tile) * divide_up(n, tile) <= device.multiprocessors;
  return (splits ? split_us : 0) + us * slowdown_of_odd_rows(x.dtype, k, n) + not_hidden * copy_us(moved, device) +
         device.beside_us(us);
}

double linear_us(const OpCall& call, const DeviceDescription& device) {
  const Type &x = call["x"], &w = call["w"];
  if (!computes_in_f32(x.dtype) || device.memory_gb_per_s <= 0) return 0;
  if (const double us = library_narrow_linear_us(call, device); us > 0) return us;
  const int64_t elements = rows_of(x) * w.elements() / std::max<int64_t>(x.shape.back(), 1);
  const int64_t moved = call.has("addend") ? 2 * call["addend"].bytes() : elements * dtype_bytes(x.dtype);
  const double us = biased_product_us(call, device, moved);
  // Of many rows with short sums on Hopper, as measured for 17 shapes: 1.3 to 2.5 times what the bytes take, and 2.8 to
  // 4.7 where steps of the depth are not whole.
  constexpr int64_t depth_step = 32;
  const double times_of_short_sums = x.shape.back() % depth_step == 0 ? 1.8 : 2.9;
  if (device.compute_capability != 90 || !is_of_short_sums(x) || rows_of(x) < many_rows || call.has("addend"))
    return us;
  return std::max(us, times_of_short_sums * copy_us(x.bytes() + moved, device));
}

// A launch of our own behind the product reads its result and writes another.
double before_gelu_us(const OpCall& call, const DeviceDescription& device) {
  const Type &x = call["x"], &w = call["w"];
  if (!computes_in_f32(x.dtype) || device.memory_gb_per_s <= 0) return 0;
  const int64_t k = x.shape.back(), bytes = rows_of(x) * w.elements() / std::max<int64_t>(k, 1) * dtype_bytes(x.dtype);
  return biased_product_us(call, device, bytes) + copy_us(2 * bytes, device) / device.efficiency_of("gelu") +
         device.launch_us + device.kernel_us;
}

// The library reads what gelu was of, and writes the result, behind its products.
double dgelu_us(const OpCall& call, const DeviceDescription& device) {
  const Type &dy = call["dy"], &w = call["w"];
  if (!computes_in_f32(dy.dtype) || device.memory_gb_per_s <= 0) return 0;
  const int64_t rows = rows_of(dy), k = dy.shape.back(), n = w.elements() / std::max<int64_t>(k, 1);
  return product_us(call, device, rows, n, k, 0) + copy_us(2 * rows * n * dtype_bytes(dy.dtype), device) +
         device.launch_us + device.kernel_us;
}

// A launch of our own behind the product reads and writes its result once more, and what gelu was of.
double before_gelu_grad_us(const OpCall& call, const DeviceDescription& device) {
  const Type &dy = call["dy"], &w = call["w"], &x = call["x"];
  if (!computes_in_f32(dy.dtype) || device.memory_gb_per_s <= 0) return 0;
  const int64_t k = dy.shape.back(), n = x.shape.back();
  return product_us(call, device, rows_of(dy), n, k, x.bytes()) *
             slowdown_of_odd_rows(dy.dtype, w.shape[0], w.shape[1]) +
         copy_us(3 * x.bytes(), device) / device.efficiency_of("gelu_grad") + 2 * (device.launch_us + device.kernel_us);
}

// Our own kernels, fitted to 20 shapes of both forms on an H100: much of the time of `streamed_bytes`, which are read
// or written behind the products, is not hidden behind these, whose tiles go in waves. Where products are short, what
// takes time is to finish tiles, `tile_us` and `column_us` for each of their columns as measured for 24 shapes on an
// H200, or all bytes. The last tiles of the blocks are finished behind all products.
struct FinishingTimes {
  int64_t parts_depth;  // from here on tiles are finished in parts
  double tile_us, column_us;
};

double finished_product_us(const DeviceDescription& device, const Type& left, const Type& right, const Type& result,
                           int64_t streamed_bytes, const FinishingTimes& times) {
  constexpr int64_t tile_rows = 128;
  constexpr double not_hidden = 0.65, copy_share = 0.85, wide_copy_share = 0.72, last_us = 3;
  if (device.memory_gb_per_s <= 0) return 0;
  const int64_t depth = left.shape.back(), columns = result.shape.back();
  const int64_t tile_columns = depth < times.parts_depth ? cuda::finished_tile_columns(columns) : 256;
  const int64_t tiles = divide_up(rows_of(result), tile_rows) * divide_up(columns, tile_columns),
                waves = divide_up(tiles, std::max(device.multiprocessors, 1)),
                places = waves * std::max(device.multiprocessors, 1);
  const double flops = 2.0 * static_cast<double>(places * tile_rows * tile_columns) * static_cast<double>(depth);
  const double products_us = device.roofline_us(flops, 0, left.dtype) + not_hidden * copy_us(streamed_bytes, device);
  const double finishing_us =
      static_cast<double>(waves) * (times.tile_us + times.column_us * static_cast<double>(tile_columns));
  const double bytes_us = copy_us(left.bytes() + right.bytes() + streamed_bytes, device) /
                          (tile_columns == 256 ? wide_copy_share : copy_share);
  return std::max({products_us, finishing_us, bytes_us}) + last_us + device.launch_us + device.kernel_us;
}

// Fitted to 18 shapes on an H200. Rows that are no whole boxes of 128 bytes come more slowly.
double short_sums_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double column_us = 0.0115, odd_times = 1.2, not_hidden = 0.25, copy_share = 0.88;
  constexpr int64_t tile_rows = 128, box_bytes = 128;
  if (device.memory_gb_per_s <= 0) return 0;
  const Type& x = call["x"];
  const Types results = llvm::cantFail(call.op.infer(call));
  const int64_t depth = x.shape.back(), columns = results[0].shape.back();
  const int64_t tile_columns = cuda::finished_tile_columns(columns);
  const int64_t tiles = divide_up(rows_of(x), tile_rows) * divide_up(columns, tile_columns);
  const int64_t places = round_up(tiles, std::max(device.multiprocessors, 1));
  const double flops = 2.0 * static_cast<double>(places * tile_rows * tile_columns) * static_cast<double>(depth);
  const double waves = static_cast<double>(places) / std::max(device.multiprocessors, 1);
  const double of_tile = column_us * static_cast<double>(tile_columns) *
                         (x.shape.back() * dtype_bytes(x.dtype) % box_bytes == 0 ? 1 : odd_times);
  const double tiles_us = waves * of_tile + not_hidden * device.roofline_us(flops, 0, x.dtype);
  return std::max(tiles_us, copy_us(x.bytes() + results[0].bytes(), device) / copy_share) + device.launch_us +
         device.kernel_us;
}

double warpgroup_gelu_us(const OpCall& call, const DeviceDescription& device) {
  constexpr FinishingTimes times{cuda::finished_parts_depth, 0.2, 0.0269};
  const Type& x = call["x"];
  return finished_product_us(device, call["dy"], call["w"], x, 2 * x.bytes(), times);
}

double warpgroup_linear_gelu_us(const OpCall& call, const DeviceDescription& device) {
  constexpr FinishingTimes times{cuda::finished_halves_depth, 0.6, 0.0178};
  const Types results = llvm::cantFail(call.op.infer(call));
  return finished_product_us(device, call["x"], call["w"], results[0], 2 * results[0].bytes(), times);
}

// How much longer the library takes than with a scale for each tensor: means of the three products of a layer of 8192 x
// 2048 with 8192 rows, on an H100.
constexpr double slowdown_of_row_scales = 1.07, slowdown_of_block_scales = 1.23;

double many_scales_us(const OpCall& call, const DeviceDescription& device) {
  const Type &x = call["x"], &w = call["w"];
  const int64_t rows = rows_of(x),
                moved = (call.has("addend") ? 2 : 1) * rows * w.shape[0] * dtype_bytes(call.attrs.get_dtype("dtype"));
  const bool has_rows = scales_of(call, "x", "x_scale") == F8Scales::Rows;
  return product_us(call, device, rows, w.shape[0], w.shape[1], moved) *
             (has_rows ? slowdown_of_row_scales : slowdown_of_block_scales) +
         device.launch_us + device.kernel_us;
}

// An odd number of the columns of aligned rows; of GPT-2's 50257 classes in rows of 50304, 2865 us beside 1594.
double slowdown_of_odd_columns(DType dtype, int64_t columns) {
  return columns % product_alignment == 0 || !is_16_bit_float(dtype) ? 1 : 1.8;
}

// The gradient of that many columns. Of a result with fewer tiles than multiprocessors parts of long sums are made
// apart and added.
double columns_us(const OpCall& call, const DeviceDescription& device, int64_t columns) {
  constexpr double split_us = 10;
  constexpr int64_t tile_rows = 128, tile_columns = 256, long_sum = 1024;
  const Type& x = call["x"];
  const int64_t m = x.shape.back(), row = call["dy"].shape.back();
  const bool splits =
      rows_of(x) >= long_sum && divide_up(m, tile_rows) * divide_up(columns, tile_columns) < device.multiprocessors;
  const double slowdown = std::max(slowdown_of_odd_rows(x.dtype, m, row), slowdown_of_odd_columns(x.dtype, columns));
  return product_us(call, device, m, columns, rows_of(x), m * columns * dtype_bytes(DType::F32)) * slowdown +
         (splits ? split_us : 0) + device.launch_us + device.kernel_us;
}

// Sums for the bias are a launch of their own, in two stages.
double weight_gradient_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double stages_us = 3;
  const Type &x = call["x"], &dy = call["dy"];
  if (!computes_in_f32(x.dtype) || device.memory_gb_per_s <= 0) return 0;
  const double sums_us =
      call.gives("dbias") ? copy_us(dy.bytes(), device) + stages_us + device.launch_us + device.kernel_us : 0;
  if (const double us = library_narrow_gradient_us(call, device); us > 0) return us + sums_us;
  return columns_us(call, device, call.attrs.get_int("columns", dy.shape.back())) + sums_us;
}

// The library sums dy in the blocks of its product, which on an H100 mostly took somewhat longer than a launch of our
// own.
double bgrad_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double slowdown = 1.05;
  return slowdown * weight_gradient_us(call, device);
}

// What the products of our own kernel take, fitted to 40 shapes on an H100 and an H200. Short products run faster than
// the roofline, until power is short; where some multiprocessors have no block, the others have more power.
double warpgroup_products_us(const cuda::WeightGradientTiles& tiles, DType dtype, const DeviceDescription& device) {
  constexpr double at_first = 0.88, per_us = 4e-4, at_last = 1.08, alone = 0.6;
  const int64_t places = round_up(tiles.blocks(), std::max(device.multiprocessors, 1));
  const double flops =
      2.0 * static_cast<double>(places * tiles.tile_elements()) * static_cast<double>(tiles.block_steps() * tiles.step);
  const double roofline_us = device.roofline_us(flops, 0, dtype);
  const double busy = static_cast<double>(tiles.blocks()) / static_cast<double>(places);
  return roofline_us * std::min(at_first + per_us * roofline_us, at_last) * (alone + (1 - alone) * busy);
}

// A wave of blocks begins and stores; partial sums go to the cache and back. In a step the first wave begins while the
// kernel ahead drains, and the sums' launch while the last one does.
double warpgroup_bgrad_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double load_rate = 0.95, odd_load_rate = 0.8, step_us = 0.57, wave_us = 7, cache_bytes_per_us = 8e6;
  constexpr int64_t whole_bytes = 64;  // of rows whose boxes memory brings at its speed
  if (device.memory_gb_per_s <= 0) return 0;
  const Type &x = call["x"], &dy = call["dy"];
  const cuda::WeightGradientTiles tiles = weight_gradient_tiles(call, device);
  const bool is_odd = (tiles.sizes.rows | tiles.sizes.columns) * dtype_bytes(x.dtype) % whole_bytes != 0;
  const double loads_us = copy_us(x.bytes() + dy.bytes(), device) / (is_odd ? odd_load_rate : load_rate);
  const auto waves = static_cast<double>(divide_up(tiles.blocks(), std::max(device.multiprocessors, 1)));
  const double steps_us = waves * step_us * static_cast<double>(tiles.block_steps());
  const auto partial_bytes = static_cast<double>(tiles.partial_elements()) * sizeof(float);
  const int64_t elements = tiles.sizes.rows * tiles.sizes.columns * (call.has("addend") ? 2 : 1);
  return std::max({warpgroup_products_us(tiles, x.dtype, device), loads_us, steps_us}) + waves * wave_us +
         2 * partial_bytes / cache_bytes_per_us + copy_us(elements * dtype_bytes(DType::F32), device) +
         device.launch_us;
}

// Fitted on an H200, where up to three blocks for two multiprocessors do not disturb each other.
double few_rows_us(const OpCall& call, const DeviceDescription& device) {
  constexpr int64_t tile = 64, step_rows = 64;
  constexpr double step_us = 1, first_us = 1, blocks_apart = 1.5;
  if (device.memory_gb_per_s <= 0) return 0;
  const Type &x = call["x"], &dy = call["dy"];
  const auto blocks = static_cast<double>(divide_up(x.shape.back(), tile) * divide_up(dy.shape.back(), tile));
  const double share = blocks / (std::max(device.multiprocessors, 1) * blocks_apart);
  const auto steps = static_cast<double>(divide_up(rows_of(x), step_rows));
  return first_us + step_us * steps * std::max(share, 1.0) + device.launch_us + device.kernel_us;
}

double split_gradient_us(const OpCall& call, const DeviceDescription& device) {
  if (device.memory_gb_per_s <= 0) return 0;
  const int64_t columns = call.get_int("columns"), most = aligned_columns(columns);
  return columns_us(call, device, most) + columns_us(call, device, columns - most);
}

constexpr CudaCandidate cublaslt(const OpDef& op, llvm::StringLiteral name, int algorithms,
                                 CudaCandidate::AcceptsFn accepts,
                                 CudaCandidate::WorkspaceFn workspace = matmul_workspace,
                                 CudaCandidate::TimeFn predicted_us = nullptr) {
  return {.op = op,
          .name = name,
          .accepts = accepts,
          .workspace_bytes = workspace,
          .algorithms = algorithms,
          .predicted_us = predicted_us};
}

// These run on cards of one compute capability alone.
constexpr CudaCandidate cublaslt_on(int capability, const OpDef& op, llvm::StringLiteral name, int algorithms,
                                    CudaCandidate::AcceptsFn accepts, CudaCandidate::TimeFn predicted_us) {
  return {.op = op,
          .name = name,
          .accepts = accepts,
          .workspace_bytes = matmul_workspace,
          .algorithms = algorithms,
          .predicted_us = predicted_us,
          .capability = capability};
}

constexpr CudaCandidate warpgroup_bgrad{.op = op_linear_dw,
                                        .name = "warpgroup_bgrad",
                                        .accepts = accepts_warpgroup_bgrad,
                                        .workspace_bytes = warpgroup_bgrad_workspace,
                                        .predicted_us = warpgroup_bgrad_us,
                                        .capability = 90};

constexpr CudaCandidate warpgroup_linear_gelu{.op = op_linear_gelu,
                                              .name = "warpgroup_gelu",
                                              .accepts = accepts_warpgroup_linear_gelu,
                                              .predicted_us = warpgroup_linear_gelu_us,
                                              .capability = 90};

constexpr CudaCandidate warpgroup_linear{.op = op_linear,
                                         .name = "warpgroup",
                                         .accepts = accepts_short_sums,
                                         .predicted_us = short_sums_us,
                                         .capability = 90};

constexpr CudaCandidate warpgroup_gelu{.op = op_linear_gelu_grad,
                                       .name = "warpgroup_gelu",
                                       .accepts = accepts_warpgroup_gelu,
                                       .predicted_us = warpgroup_gelu_us,
                                       .capability = 90};

constexpr CudaCandidate warpgroup_left{.op = op_matmul,
                                       .name = "warpgroup_left",
                                       .accepts = accepts_left_product,
                                       .predicted_us = left_product_us,
                                       .capability = 90};

constexpr CudaCandidate warpgroup_sum{.op = op_matmul_sum,
                                      .name = "warpgroup",
                                      .accepts = accepts_left_gradient,
                                      .workspace_bytes = left_gradient_workspace,
                                      .predicted_us = left_gradient_us,
                                      .capability = 90};

constexpr CudaCandidate matmul_table[] = {
    cublaslt(op_matmul, "cublaslt", 4, accepts_matmul<2>, matmul_workspace, matmul_us),
    {.op = op_matmul, .name = "few_rows", .accepts = accepts_few_rows_product, .predicted_us = few_rows_product_us},
    warpgroup_left,
    warpgroup_sum,
    cublaslt(op_linear, "cublaslt", 4, accepts_matmul<3>, matmul_workspace, linear_us),
    {.op = op_linear, .name = "narrow", .accepts = accepts_narrow_linear, .predicted_us = narrow_linear_us},
    warpgroup_linear,
    cublaslt(op_linear_gelu, "cublaslt", 4, accepts_linear_gelu, matmul_workspace, before_gelu_us),
    warpgroup_linear_gelu,
    cublaslt(op_linear_gelu_grad, "cublaslt_dgelu", 2, accepts_dgelu, matmul_workspace, dgelu_us),
    cublaslt(op_linear_gelu_grad, "cublaslt", 1, accepts_gelu_grad, matmul_workspace, before_gelu_grad_us),
    warpgroup_gelu,
    cublaslt(op_linear_f8, "cublaslt", 4, accepts_linear_f8),
    cublaslt_on(90, op_linear_f8, "cublaslt_scales", 4, accepts_many_scales, many_scales_us),
    cublaslt(op_linear_dw, "cublaslt", 4, accepts_weight_gradient, weight_gradient_workspace, weight_gradient_us),
    cublaslt(op_linear_dw, "cublaslt_split", 4, accepts_split_gradient, matmul_workspace, split_gradient_us),
    cublaslt(op_linear_dw, "cublaslt_bgrad", 2, accepts_bgrad, matmul_workspace, bgrad_us),
    warpgroup_bgrad,
    {.op = op_linear_dw, .name = "few_rows", .accepts = accepts_few_rows, .predicted_us = few_rows_us},
    {.op = op_linear_dw,
     .name = "narrow",
     .accepts = accepts_narrow_gradient,
     .workspace_bytes = narrow_gradient_workspace,
     .predicted_us = narrow_gradient_us},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> matmul_candidates() { return matmul_table; }

}  // namespace plimsoll
