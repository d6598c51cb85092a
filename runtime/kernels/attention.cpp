#include "runtime/kernels/attention.h"

#include "ir/support/philox.h"
#include "kernels/cuda/attention/few_rows_sizes.h"
#include "kernels/cuda/attention/mask_grad_sizes.h"
#include "kernels/cuda/attention/one_pass_sizes.h"
#include "kernels/cuda/attention/sinks_grad_sizes.h"
#include "kernels/cuda/attention/whole_heads_sizes.h"

namespace plimsoll {
namespace {

// Slopes of heads are f32, as recovery makes them.
template <size_t mask>
bool has_fitting_slopes(const OpCall& call) {
  const size_t slopes = mask + attention_slopes;
  return !call.has(slopes) || call.operand(slopes).dtype == DType::F32;
}

bool has_float_row_mask(const OpCall& call, size_t mask) {
  if (!call.has(mask)) return false;
  const Type& type = call.operand(mask);
  return type.dtype != DType::Bool && type.shape[type.rank() - 2] != 1;
}

template <size_t mask>
bool accepts_flash(const OpCall& call, llvm::ArrayRef<Type>) {
  const AttentionSizes n(call);
  if (call.has(mask) && call.operand(mask).dtype != DType::Bool && !computes_in_f32(call.operand(mask).dtype))
    return false;
  return computes_in_f32(call.operand(0).dtype) && n.depth <= max_flash_depth && n.value_depth <= max_flash_depth &&
         has_fitting_slopes<mask>(call);
}

int64_t grad_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return row_products_bytes(call);
}

// ---- Our own on the matrix units: 16-bit floats ----

template <size_t mask>
bool accepts_mma(const OpCall& call, llvm::ArrayRef<Type>) {
  const AttentionSizes n(call);
  const DType dtype = call.operand(0).dtype;
  if (call.has(mask)) {
    const DType type = call.operand(mask).dtype;
    if (type != DType::Bool && type != DType::F32 && type != dtype) return false;
  }
  // Backward adds masks to capped scores only where it differentiates the cap, column by column.
  if (mask == attention_grad_mask && call.attrs.get_float("softcap") > 0 && has_float_row_mask(call, mask))
    return false;
  return is_16_bit_float(dtype) && n.depth <= max_flash_depth && n.value_depth <= max_flash_depth &&
         call.attrs.get_float("scale") > 0 && has_fitting_slopes<mask>(call);
}

int64_t mma_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return next_rows_bytes(call) + segment_tiles_bytes(call, attention_mask) + column_tiles_bytes(call, attention_mask);
}

int64_t mma_grad_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return row_products_bytes(call) + segment_tiles_bytes(call, attention_grad_mask) +
         column_tiles_bytes(call, attention_grad_mask);
}

// Without slopes, segments and masks with rows, on rows of whole 16-byte words.
bool accepts_one_pass(const OpCall& call, llvm::ArrayRef<Type> results) {
  const AttentionSizes n(call);
  const int64_t widest = std::max(n.depth, n.value_depth);
  constexpr size_t mask = attention_grad_mask;
  return accepts_mma<mask>(call, results) && widest > 32 && widest <= cuda::max_one_pass_depth && n.depth % 8 == 0 &&
         n.value_depth % 8 == 0 && !call.has(mask + attention_slopes) && !call.has(mask + attention_segments) &&
         (!call.has(mask) || mask_steps(call.operand(mask), n)[2] == 0);
}

int64_t one_pass_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return OnePassBytes(call).all + column_tiles_bytes(call, attention_grad_mask);
}

// Masks with rows that the copy engine brings as tiles, in rows of whole 16-byte words.
bool has_mask_tiles(const OpCall& call, size_t mask) {
  const AttentionSizes n(call);
  const Type& type = call.operand(mask);
  const Shape steps = mask_steps(type, n);
  return type.dtype != DType::Bool && steps[2] == n.columns && steps[3] == 1 &&
         n.columns * dtype_bytes(type.dtype) % 16 == 0;
}

// The copy engine brings the mask and takes dS.
bool accepts_one_pass_with_mask(const OpCall& call, llvm::ArrayRef<Type> results) {
  constexpr size_t mask = attention_grad_mask;
  const AttentionSizes n(call);
  const int64_t widest = std::max(n.depth, n.value_depth);
  return accepts_mma<mask>(call, results) && widest > 32 && widest <= 64 && n.depth % 8 == 0 &&
         n.value_depth % 8 == 0 && !call.has(mask + attention_slopes) && !call.has(mask + attention_segments) &&
         has_mask_tiles(call, mask) && !ScoreGradSizes(call).is_wide;
}

int64_t one_pass_with_mask_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return ScoreGradSizes(call).workspace_bytes() + OnePassBytes(call).all;
}

int64_t mma_mask_grad_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return row_products_bytes(call) + mask_grad_partials_bytes(call) + segment_tiles_bytes(call, attention_grad_mask);
}

// As kernels for warpgroups write dS.
bool accepts_stored_scores(const OpCall& call, llvm::ArrayRef<Type> results) {
  const AttentionSizes n(call);
  return accepts_mma<attention_grad_mask>(call, results) && std::max(n.depth, n.value_depth) > 32;
}

int64_t stored_scores_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return row_products_bytes(call) + ScoreGradSizes(call).workspace_bytes() +
         segment_tiles_bytes(call, attention_grad_mask);
}

int64_t sinks_grad_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  const SinksSizes n(call);
  return cuda::sinks_grad_parts(n.heads, n.batch * n.rows) * n.heads * static_cast<int64_t>(sizeof(float));
}

// What the kernels for the matrix units take on an H200, or forward on Hopper on an H100: a block of rows or columns,
// and a pair of a row and a column that meet in a tile.
struct MmaTimes {
  double block_ns, pair_ps, depth_ps;      // the last per element of a head
  double dropout_ps, columns_ps, mask_ps;  // a pair more with dropout, with a mask of columns, with any other mask
  double cap_ps;                           // a pair more with a cap
  int64_t launches, own_rows, both_sides;  // do blocks of columns come on top of those of rows?
  double long_heads = 1;                   // the factor of depth_ps beyond 128 elements
  int64_t row_tile = 64;                   // rows that are computed together, whether they are all there or not
};

// Small windows take a share of a copy's speed, and move tensors of rows and of columns.
struct WindowTimes {
  double of_copy;
  int64_t row_tensors, column_tensors;
};

// What few rows take on an H200: a share of a copy's speed, or so long for a head, with its products beside other work.
struct FewRowsTimes {
  double head_us, us_per_mega;  // the second for 2^20 elements of pairs of rows and columns
  double alone, odd;  // as often where a block is alone on a multiprocessor; where elements are copied one by one
  int64_t row_tensors, column_tensors;
};
constexpr FewRowsTimes few_rows_times{5.7, 9.4, 1, 1.5, 2, 2}, few_rows_grad_times{10, 15.7, 1.32, 1, 3, 4};

// By kernel: for any card, for warpgroups (heads of more than 32 elements on Hopper), and for small windows.
struct AttentionTimes {
  MmaTimes any, warpgroups;
  WindowTimes windows;
};
constexpr AttentionTimes forward_times{{5, 0.05, 0.0145, 0.3, 0.155, 0.9, 0.4, 1, 64, 0},
                                       {8, 0.11, 0.0059, 0.33, 0.15, 0.9, 0.35, 1, 64, 0},
                                       {0.72, 2, 2}};
// On Hopper, of heads of 65 to 128 elements without dropout.
constexpr AttentionTimes forward_128_times{
    forward_times.any, {24, 0.32, 0.003, 0, 0.15, 0.9, 0.35, 1, 192, 0, 1, 192}, forward_times.windows};
// On Hopper, of heads of 33 to 64 elements whose blocks take rows after rows.
constexpr AttentionTimes short_forward_times{
    forward_times.any, {4, 0.15, 0.0059, 0.36, 0.05, 0.37, 0, 1, 64, 0}, forward_times.windows};
constexpr AttentionTimes backward_times{
    {5, 0.2, 0.0556, 1.1, 0.38, 3, 1, 3, 128, 1}, {5, 1.55, 0.0194, 1.1, 0.44, 1.7, 0.8, 3, 64, 1, 2.35}, {0.63, 4, 4}};
constexpr MmaTimes mask_grad_mma_times{5, 0.3, 0.025, 0.6, 0.16, 1.5, 0, 3, 64, 0};
constexpr AttentionTimes mask_grad_times{mask_grad_mma_times, mask_grad_mma_times, {0.57, 3, 2}};
constexpr double measured_tflops = 790, measured_multiprocessors = 132;

int64_t tiles(int64_t rows, int64_t tile) { return (rows + tile - 1) / tile; }

// Backward reads both once before all else.
double y_and_dy_us(const OpCall& grad, const DeviceDescription& device) {
  return static_cast<double>(grad.operand(3).bytes() + grad.operand(5).bytes()) / (device.memory_gb_per_s * 1e3);
}

// As the kernels decide (attention_windows.cuh): windows whose mask is the same for all samples.
template <size_t mask>
bool are_small_windows(const OpCall& call) {
  constexpr int64_t max_rows = 64, max_depth = 32;
  const AttentionSizes n(call);
  const bool has_own_mask = call.has(mask) && call.operand(mask).rank() == 4 && call.operand(mask).shape[0] > 1;
  return n.depth <= max_depth && n.depth % 8 == 0 && n.value_depth == n.depth && n.rows <= max_rows &&
         n.columns <= max_rows && n.heads == n.kv_heads && call.attrs.get_float("dropout") == 0 && !has_own_mask &&
         call.attrs.get_float("softcap") == 0 && !(mask == attention_mask && call.has(attention_sinks));
}

// Each with its own key head, without dropout, caps, slopes, segments and masks with rows. Small windows have a kernel
// of their own.
bool accepts_whole_heads(const OpCall& call, llvm::ArrayRef<Type> results) {
  const AttentionSizes n(call);
  constexpr size_t mask = attention_grad_mask;
  return accepts_mma<mask>(call, results) && n.heads == n.kv_heads && n.depth == n.value_depth &&
         cuda::fits_whole_heads(n.rows, n.columns, n.depth) && call.attrs.get_float("dropout") == 0 &&
         call.attrs.get_float("softcap") == 0 && !call.has(mask + attention_slopes) &&
         !call.has(mask + attention_segments) && (!call.has(mask) || mask_steps(call.operand(mask), n)[2] == 0) &&
         !are_small_windows<mask>(call);
}

double windows_us(const OpCall& call, const WindowTimes& times, const DeviceDescription& device) {
  const AttentionSizes n(call);
  const int64_t rows = times.row_tensors * n.rows + times.column_tensors * n.columns;
  const auto bytes = static_cast<double>(n.batch * n.heads * n.depth * rows * dtype_bytes(call.operand(0).dtype));
  return bytes / (times.of_copy * device.memory_gb_per_s * 1e3) + device.launch_us + device.kernel_us;
}

template <size_t mask>
bool accepts_few_rows(const OpCall& call, llvm::ArrayRef<Type> results) {
  const AttentionSizes n(call);
  return accepts_mma<mask>(call, results) && cuda::are_few_rows(n.rows, n.columns, n.depth, n.value_depth) &&
         (mask == attention_mask || n.heads == n.kv_heads);
}

// Heads follow one another on as many places as blocks find.
template <const FewRowsTimes& times, size_t mask>
double few_rows_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double of_copy = 0.62, forms_us = 4, mega = 1 << 20;
  constexpr int64_t shared_bytes = 227 << 10, of_block = 2 << 10, most_blocks = 2, places_per_word = 4;
  if (device.memory_gb_per_s <= 0) return 0;
  const AttentionSizes n(call);
  const cuda::FewRows tile(n.rows, n.columns, n.depth);
  const int64_t bytes_of_head = (mask == attention_mask ? tile.forward_bytes() : tile.gradient_bytes()) + of_block;
  const int64_t blocks = std::min(shared_bytes / bytes_of_head, most_blocks), heads = n.batch * n.heads;
  const int64_t turns = tiles(heads, blocks * std::max(device.multiprocessors, 1));
  const bool has_forms = call.has(mask) || call.has(mask + attention_slopes) || call.has(mask + attention_segments) ||
                         call.attrs.get_int("window") > 0 || call.attrs.get_float("softcap") > 0 ||
                         call.attrs.get_float("dropout") > 0;
  const double head_us =
      (times.head_us + times.us_per_mega * tile.depth * tile.rows * tile.columns / mega + (has_forms ? forms_us : 0)) *
      (blocks == 1 ? times.alone : 1) * (n.depth % places_per_word != 0 ? times.odd : 1);
  const auto bytes =
      static_cast<double>(heads * n.depth * (times.row_tensors * n.rows + times.column_tensors * n.columns) *
                          dtype_bytes(call.operand(0).dtype));
  return std::max(bytes / (of_copy * device.memory_gb_per_s * 1e3), static_cast<double>(turns) * head_us) +
         device.launch_us + device.kernel_us;
}

double padded_depth(const AttentionSizes& n) {
  const int64_t widest = std::max(n.depth, n.value_depth);
  return widest <= 32 ? 32 : widest <= 64 ? 64 : widest <= 128 ? 128 : 256;
}

// What a pair of a row and a column that meet in a tile takes.
template <size_t mask>
double pair_ps(const OpCall& call, const MmaTimes& times) {
  const double depth = padded_depth(AttentionSizes(call));
  double ps = times.pair_ps + times.depth_ps * depth * (depth > 128 ? times.long_heads : 1);
  if (call.attrs.get_float("dropout") > 0) ps += times.dropout_ps;
  if (call.has(mask)) {
    const Type& type = call.operand(mask);
    const bool same_rows = type.rank() < 2 || type.shape[type.rank() - 2] == 1;
    ps += same_rows ? times.columns_ps : times.mask_ps;
  }
  if (call.has(mask + attention_slopes)) ps += times.columns_ps;
  if (call.attrs.get_float("softcap") > 0) ps += times.cap_ps;
  return ps;
}

// Rows of heads that end within a 16-byte word come to shared memory element by element: what that takes on an H200, by
// the elements of the tiles' rows. Forward a block brings a tile of q and all of k and v; of the two or three launches
// backward each brings two tiles and all of two others.
template <size_t mask>
double odd_rows_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double forward_ps[] = {5.8, 11.7, 11}, backward_ps[] = {7.6, 9.7, 18};  // by the depth
  constexpr double causal_share = 0.8;
  constexpr int64_t tile = 64;
  const AttentionSizes n(call);
  if (n.depth % 8 == 0 && n.value_depth % 8 == 0) return 0;
  const double depth = padded_depth(n);
  const size_t of_depth = depth <= 64 ? 0 : depth <= 128 ? 1 : 2;
  const int64_t row_tiles = tiles(n.rows, tile), column_tiles = tiles(n.columns, tile);
  const int64_t rows = mask == attention_mask ? row_tiles * tile * (1 + 2 * column_tiles)
                                              : row_tiles * tile * (2 + 2 * column_tiles) +
                                                    (depth > 128 ? 2 : 1) * column_tiles * tile * (2 + 2 * row_tiles);
  const double ps = mask == attention_mask ? forward_ps[of_depth] : backward_ps[of_depth];
  return static_cast<double>(n.batch * n.heads * rows) * depth * ps * 1e-6 *
         (call.attrs.get_int("causal") ? causal_share : 1) * measured_multiprocessors /
         std::max(device.multiprocessors, 1);
}

template <size_t mask>
double pairs_us(const OpCall& call, const MmaTimes& times, const DeviceDescription& device) {
  const double tflops = device.matmul_tflops_for(call.operand(0).dtype);
  if (tflops <= 0 || device.memory_gb_per_s <= 0) return 0;
  const AttentionSizes n(call);
  const auto heads = static_cast<double>(n.batch * n.heads);
  const auto rows = static_cast<double>(tiles(n.rows, times.row_tile) * times.row_tile),
             columns = static_cast<double>(tiles(n.columns, 64) * 64);
  const double blocks =
      heads * static_cast<double>(tiles(n.rows, times.own_rows) + times.both_sides * tiles(n.columns, times.own_rows));
  const bool causal = call.attrs.get_int("causal");
  const double all = causal ? std::min(rows, columns) * (std::min(rows, columns) + times.own_rows) / 2 +
                                  std::max(rows - columns, 0.0) * columns
                            : rows * columns;
  // A block of rows meets the tiles that its window touches.
  const auto window = static_cast<double>(call.attrs.get_int("window"));
  const double met = window > 0 ? std::min(all, rows * ((causal ? 1 : 2) * window + times.own_rows + 64)) : all;
  return blocks * times.block_ns * 1e-3 * measured_multiprocessors / std::max(device.multiprocessors, 1) +
         heads * met * pair_ps<mask>(call, times) * 1e-6 * measured_tflops / tflops + odd_rows_us<mask>(call, device) +
         (times.launches > 1 ? y_and_dy_us(call, device) : 0) +
         static_cast<double>(times.launches) * (device.launch_us + device.kernel_us);
}

template <const AttentionTimes& all_times, size_t mask>
double mma_us(const OpCall& call, const DeviceDescription& device) {
  if (are_small_windows<mask>(call) && device.memory_gb_per_s > 0) return windows_us(call, all_times.windows, device);
  const AttentionSizes n(call);
  const int64_t widest = std::max(n.depth, n.value_depth);
  // Forward, the copy engine brings rows of a multiple of 16 bytes.
  const bool has_whole_words = mask != attention_mask || (n.depth % 8 == 0 && n.value_depth % 8 == 0);
  const bool has_warpgroups = device.compute_capability == 90 && widest > 32 && has_whole_words;
  return pairs_us<mask>(call, has_warpgroups ? all_times.warpgroups : all_times.any, device);
}

// As attention_short_forward.cu takes them.
bool is_short_forward(const OpCall& call) {
  constexpr size_t mask = attention_mask;
  const AttentionSizes n(call);
  const int64_t widest = std::max(n.depth, n.value_depth);
  return widest > 32 && widest <= 64 && call.attrs.get_float("softcap") == 0 && !call.has(mask + attention_slopes) &&
         !call.has(mask + attention_segments) &&
         (!call.has(mask) || mask_steps(call.operand(mask), n)[2] == 0 || has_mask_tiles(call, mask));
}

double forward_us(const OpCall& call, const DeviceDescription& device) {
  const AttentionSizes n(call);
  if (is_short_forward(call)) return mma_us<short_forward_times, attention_mask>(call, device);
  const bool is_128 = padded_depth(n) == 128 && call.attrs.get_float("dropout") == 0;
  return is_128 ? mma_us<forward_128_times, attention_mask>(call, device)
                : mma_us<forward_times, attention_mask>(call, device);
}

cuda::OnePassSteps one_pass_steps(const OpCall& grad) {
  const AttentionSizes n(grad);
  return cuda::one_pass_steps(n.rows, n.columns, std::max(n.depth, n.value_depth), n.heads / n.kv_heads,
                              grad.attrs.get_int("causal"), grad.attrs.get_int("window"));
}

// What one pass takes on an H200: a block of columns beside its steps, and a pair of a row and a column in these.
struct OnePassTimes {
  double block_us, pair_ps, dropout_ps, columns_ps, mask_ps, cap_ps;
};
// Heads of up to 64 elements, 128 and 256.
constexpr OnePassTimes one_pass_times[] = {
    {3, 1.48, 0.38, 0.1, 0.74, 0.2}, {5, 2.59, 0.55, 0.1, 0, 0.4}, {4, 7.68, 0.55, 0.1, 0, 0}};

// Steps are shared out evenly, but a block takes its own one after the other. Blocks that begin together wait for one
// another's sums; those of dk and dv by part of the heads are written and read again.
double one_pass_us(const OpCall& grad, const DeviceDescription& device) {
  constexpr size_t mask = attention_grad_mask;
  constexpr double waits_us = 6, of_copy = 1;
  const double tflops = device.matmul_tflops_for(grad.operand(0).dtype);
  if (tflops <= 0 || device.memory_gb_per_s <= 0) return 0;
  const AttentionSizes n(grad);
  const double depth = padded_depth(n);
  const OnePassTimes& times = one_pass_times[depth <= 64 ? 0 : depth <= 128 ? 1 : 2];
  double ps = times.pair_ps;
  if (grad.attrs.get_float("dropout") > 0) ps += times.dropout_ps;
  if (grad.has(mask)) ps += mask_steps(grad.operand(mask), n)[2] == 0 ? times.columns_ps : times.mask_ps;
  if (grad.attrs.get_float("softcap") > 0) ps += times.cap_ps;

  const int64_t own = cuda::one_pass_columns(std::max(n.depth, n.value_depth)), key_heads = n.batch * n.kv_heads;
  const OnePassBytes bytes(grad);
  const cuda::OnePassSteps steps = one_pass_steps(grad);
  const auto per_multiprocessor = [&](int64_t count) {
    return static_cast<double>(count) / std::max(device.multiprocessors, 1);
  };
  const double step_us =
      static_cast<double>(own * cuda::one_pass_rows) * ps * measured_multiprocessors * 1e-6 * measured_tflops / tflops;
  const double all_steps = std::max(per_multiprocessor(key_heads * steps.all),
                                    static_cast<double>(steps.longest) / static_cast<double>(bytes.parts));
  const double sum_us = bytes.parts > 1
                            ? 2 * static_cast<double>(bytes.partials) / (of_copy * device.memory_gb_per_s * 1e3) +
                                  device.launch_us + device.kernel_us
                            : 0;
  return all_steps * step_us + per_multiprocessor(key_heads * bytes.parts * tiles(n.columns, own)) * times.block_us +
         waits_us + sum_us + y_and_dy_us(grad, device) + 2 * (device.launch_us + device.kernel_us);
}

// What whole heads take on an H200. Those of up to 64 rows share a multiprocessor and memory; longer ones follow one
// another in tiles of rows, and where two blocks fit a multiprocessor a tile of each takes little longer than one.
double whole_heads_us(const OpCall& grad, const DeviceDescription& device) {
  constexpr double short_head_us = 1.65, of_copy = 0.77, begin_us = 3, tile_us = 3.55, paired_tile_us = 4.1,
                   of_32_elements = 0.88;
  const double tflops = device.matmul_tflops_for(grad.operand(0).dtype);
  if (tflops <= 0 || device.memory_gb_per_s <= 0) return 0;
  const AttentionSizes n(grad);
  const int64_t heads = n.batch * n.heads, multiprocessors = std::max(device.multiprocessors, 1);
  const double launch_us = device.launch_us + device.kernel_us, speed = measured_tflops / tflops;
  if (cuda::are_short_heads(n.rows, n.columns)) {
    const auto bytes = static_cast<double>(8 * heads * n.depth * (n.rows + n.columns));
    const double heads_us = static_cast<double>(heads) / static_cast<double>(multiprocessors) * short_head_us * speed;
    return std::max(heads_us, bytes / (of_copy * device.memory_gb_per_s * 1e3)) + launch_us;
  }
  const bool are_paired = n.columns <= cuda::max_paired_columns;
  const int64_t of_block = tiles(heads, multiprocessors * (are_paired ? 2 : 1)) * tiles(n.rows, 64);
  return static_cast<double>(of_block) * (are_paired ? paired_tile_us : tile_us) * (n.depth > 32 ? 1 : of_32_elements) *
             speed +
         begin_us + launch_us;
}

// On the vector units, in TFLOP/s as measured on an H200, where products in f32 reach 51.
constexpr double flash_tflops = 11, flash_grad_tflops = 8, measured_f32_tflops = 51;

template <const OpDef& op, const double& tflops>
double flash_us(const OpCall& call, const DeviceDescription& device) {
  const double f32_tflops = device.matmul_tflops_for(DType::F32);
  if (f32_tflops <= 0) return 0;
  return op.flops(call, {}) / tflops * 1e-6 * measured_f32_tflops / f32_tflops + device.launch_us + device.kernel_us;
}

// The mask's gradient in a launch of its own, but for small windows, whose sums stay in registers.
double grad_with_mask_us(const OpCall& call, const DeviceDescription& device) {
  constexpr WindowTimes windows{0.6, 4, 4};
  if (are_small_windows<attention_grad_mask>(call) && device.memory_gb_per_s > 0)
    return windows_us(call, windows, device) + device.kernel_us;
  return mma_us<backward_times, attention_grad_mask>(call, device) +
         mma_us<mask_grad_times, attention_grad_mask>(call, device);
}

// dS is written, and read again where it is summed.
double stored_scores_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double of_copy = 0.8;
  const double other_us = mma_us<backward_times, attention_grad_mask>(call, device);
  if (other_us <= 0) return 0;
  const ScoreGradSizes scores(call);
  const int64_t moved = scores.is_result ? scores.bytes : 2 * scores.bytes + call["mask"].bytes();
  return other_us + static_cast<double>(moved) / (of_copy * device.memory_gb_per_s * 1e3) +
         (scores.is_result ? 0 : device.launch_us + device.kernel_us);
}

// dS is written beside the products, and read where it is summed.
double one_pass_with_mask_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double of_copy = 0.65;
  const double other_us = one_pass_us(call, device);
  const ScoreGradSizes scores(call);
  if (other_us <= 0 || scores.is_result) return other_us;
  return other_us +
         static_cast<double>(scores.bytes + call["mask"].bytes()) / (of_copy * device.memory_gb_per_s * 1e3) +
         device.launch_us + device.kernel_us;
}

double flash_with_mask_us(const OpCall& call, const DeviceDescription& device) {
  return flash_us<op_attention_grad, flash_grad_tflops>(call, device) +
         flash_us<op_attention_mask_grad, flash_grad_tflops>(call, device);
}

bool accepts_sinks_grad(const OpCall& call, llvm::ArrayRef<Type>) {
  return computes_in_f32(call.operand(0).dtype) && call["lse"].dtype == DType::F32 &&
         computes_in_f32(call["sinks"].dtype);
}

bool accepts_rotary(const OpCall& call, llvm::ArrayRef<Type>) {
  const DType x = call.operand(0).dtype, table = call.operand(1).dtype;
  return computes_in_f32(x) && (table == DType::F32 || table == x) && call.operand(2).dtype == table;
}

// In place, heads that do not turn are not touched.
double rotary_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double of_copy = 0.95;
  if (device.memory_gb_per_s <= 0) return 0;
  const RotarySizes n(call);
  const auto x = static_cast<double>(call.operand(0).bytes() * n.turned) / static_cast<double>(n.heads);
  const double bytes = 2 * x + static_cast<double>(call.operand(1).bytes() + call.operand(2).bytes());
  return bytes / (of_copy * device.memory_gb_per_s * 1e3) + device.launch_us + device.kernel_us;
}

// The dots of y and dy are bound by reading them.
double sinks_grad_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double of_copy = 0.6;
  if (device.memory_gb_per_s <= 0) return 0;
  return 2 * static_cast<double>(call.operand(0).bytes()) / (of_copy * device.memory_gb_per_s * 1e3) +
         2 * (device.launch_us + device.kernel_us);
}

// ---- cuDNN: 16-bit floats without mask, dropout, cap or sinks ----

template <size_t mask>
bool accepts_cudnn(const OpCall& call, llvm::ArrayRef<Type>) {
  const AttentionSizes n(call);
  const bool causal = call.attrs.get_int("causal");
  const bool is_plain = !call.has(mask) && !call.has(mask + attention_slopes) && !call.has(mask + attention_segments) &&
                        !(mask == attention_mask && call.has(attention_sinks)) && call.attrs.get_float("softcap") == 0;
  return is_16_bit_float(call.operand(0).dtype) && is_plain && call.attrs.get_float("dropout") == 0 &&
         call.attrs.get_int("window") == 0 && n.depth % 8 == 0 && n.depth <= 128 && n.value_depth == n.depth &&
         n.batch * n.rows * n.depth > 0 && n.columns > 0 && (!causal || n.rows == n.columns);
}

// What cuDNN 9 takes forward on an H200: a block of 128 rows, and a pair of a row and a column that meet in a tile, for
// heads of up to 64 and 128 elements. Of other cards and smaller heads it was not measured: there it comes first.
double cudnn_us(const OpCall& call, const DeviceDescription& device) {
  constexpr MmaTimes of_64{8.6, 0.79, 0, 0, 0, 0, 0, 1, 128, 0, 1, 128},
      of_128{8.6, 1.1, 0, 0, 0, 0, 0, 1, 128, 0, 1, 128};
  const double depth = padded_depth(AttentionSizes(call));
  if (device.compute_capability != 90 || depth <= 32) return 0;
  return pairs_us<attention_mask>(call, depth <= 64 ? of_64 : of_128, device);
}

constexpr int64_t slack = int64_t{1} << 20;  // cuDNN's own row counters and alignment

int64_t cudnn_workspace(const OpCall&, llvm::ArrayRef<Type>, const DeviceDescription&) { return slack; }

// cuDNN 9 asks for dq in f32 and sums of rows, on chips before Hopper dk and dv's share too, and with fewer
// key heads than query heads both at all query heads in 16 bits. Times round up to whole tiles of 128.
int64_t cudnn_grad_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription& device) {
  const AttentionSizes n(call);
  const int64_t rows = (n.rows + 127) / 128 * 128, columns = (n.columns + 127) / 128 * 128;
  int64_t bytes = 4 * n.batch * n.heads * rows * (device.compute_capability >= 90 ? n.depth + 1 : 2 * n.depth + 1);
  if (n.heads != n.kv_heads) bytes += 2 * 2 * n.batch * n.heads * columns * n.depth;
  return bytes + slack;
}

constexpr int64_t max_ordered_bytes = int64_t{256} << 20;

// In a fixed order cuDNN keeps all probabilities in 16 bits; the batch is cut in pieces so that they stay small.
int64_t cudnn_ordered_grad_workspace(const OpCall& call, llvm::ArrayRef<Type> results,
                                     const DeviceDescription& device) {
  const AttentionSizes n(call);
  const int64_t rows = (n.rows + 127) / 128 * 128, columns = (n.columns + 127) / 128 * 128;
  const int64_t whole = cudnn_grad_workspace(call, results, device) - slack + 2 * n.batch * n.heads * rows * columns;
  return std::max(whole / n.batch, std::min(whole, max_ordered_bytes)) + slack;
}

// By time where all of an op have one, else in this order: cuDNN's are as fast as "mma" or faster on other cards.
constexpr CudaCandidate candidates[] = {
    {.op = op_attention,
     .name = "cudnn",
     .accepts = accepts_cudnn<attention_mask>,
     .workspace_bytes = cudnn_workspace,
     .predicted_us = cudnn_us},
    {.op = op_attention_grad,
     .name = "whole_heads",
     .accepts = accepts_whole_heads,
     .predicted_us = whole_heads_us,
     .capability = 90},
    {.op = op_attention_grad,
     .name = "one_pass",
     .accepts = accepts_one_pass,
     .workspace_bytes = one_pass_workspace,
     .predicted_us = one_pass_us,
     .capability = 90},
    {.op = op_attention,
     .name = "few_rows",
     .accepts = accepts_few_rows<attention_mask>,
     .predicted_us = few_rows_us<few_rows_times, attention_mask>,
     .capability = 90},
    {.op = op_attention_grad,
     .name = "few_rows",
     .accepts = accepts_few_rows<attention_grad_mask>,
     .predicted_us = few_rows_us<few_rows_grad_times, attention_grad_mask>,
     .capability = 90},
    {op_attention_grad, "cudnn", accepts_cudnn<attention_grad_mask>, cudnn_grad_workspace, /*any_order=*/true},
    {op_attention_grad, "cudnn_ordered", accepts_cudnn<attention_grad_mask>, cudnn_ordered_grad_workspace},
    {.op = op_attention,
     .name = "mma",
     .accepts = accepts_mma<attention_mask>,
     .workspace_bytes = mma_workspace,
     .predicted_us = forward_us},
    {.op = op_attention_grad,
     .name = "mma",
     .accepts = accepts_mma<attention_grad_mask>,
     .workspace_bytes = mma_grad_workspace,
     .predicted_us = mma_us<backward_times, attention_grad_mask>},
    {.op = op_attention,
     .name = "flash",
     .accepts = accepts_flash<attention_mask>,
     .predicted_us = flash_us<op_attention, flash_tflops>},
    {.op = op_attention_grad,
     .name = "flash",
     .accepts = accepts_flash<attention_grad_mask>,
     .workspace_bytes = grad_workspace,
     .predicted_us = flash_us<op_attention_grad, flash_grad_tflops>},
    {.op = op_attention_mask_grad,
     .name = "mma",
     .accepts = accepts_mma<attention_grad_mask>,
     .workspace_bytes = mma_mask_grad_workspace,
     .predicted_us = mma_us<mask_grad_times, attention_grad_mask>},
    {op_attention_mask_grad, "flash", accepts_flash<attention_grad_mask>},
    {.op = op_attention_grad_with_mask,
     .name = "one_pass",
     .accepts = accepts_one_pass_with_mask,
     .workspace_bytes = one_pass_with_mask_workspace,
     .predicted_us = one_pass_with_mask_us,
     .capability = 90},
    {.op = op_attention_grad_with_mask,
     .name = "stored_scores",
     .accepts = accepts_stored_scores,
     .workspace_bytes = stored_scores_workspace,
     .predicted_us = stored_scores_us,
     .capability = 90},
    {.op = op_attention_grad_with_mask,
     .name = "mma",
     .accepts = accepts_mma<attention_grad_mask>,
     .workspace_bytes = mma_mask_grad_workspace,
     .predicted_us = grad_with_mask_us},
    {.op = op_attention_grad_with_mask,
     .name = "flash",
     .accepts = accepts_flash<attention_grad_mask>,
     .workspace_bytes = grad_workspace,
     .predicted_us = flash_with_mask_us},
    {.op = op_attention_grad_with_mask,
     .name = "stored_scores_lean",
     .accepts = accepts_stored_scores,
     .workspace_bytes = mma_mask_grad_workspace,
     .predicted_us = grad_with_mask_us,
     .capability = 90},
    {.op = op_attention_sinks_grad,
     .name = "dots",
     .accepts = accepts_sinks_grad,
     .workspace_bytes = sinks_grad_workspace,
     .predicted_us = sinks_grad_us},
    {.op = op_rotary, .name = "pairs", .accepts = accepts_rotary, .predicted_us = rotary_us},
};

}  // namespace

int64_t mask_grad_partials_bytes(const OpCall& call) {
  const AttentionSizes n(call);
  const Type& mask = call.operand(attention_grad_mask);
  const MaskGradSizes sizes(mask);
  if (sizes.batch != 1 && mask.dtype == DType::F32) return 0;  // no mask is shared: one launch makes the gradient
  return cuda::mask_grad_parts(sizes.batch, sizes.heads, n.rows, n.columns, std::max(n.depth, n.value_depth), n.batch) *
         mask.elements() * static_cast<int64_t>(sizeof(float));
}

ScoreGradSizes::ScoreGradSizes(const OpCall& grad) {
  const AttentionSizes n(grad);
  const DType q = grad["q"].dtype, mask = grad["mask"].dtype;
  const MaskGradSizes of_mask(grad["mask"]);
  // Columns that are written at once.
  const int64_t run = mask == DType::F32 ? 2 : 8;
  is_result =
      (mask == q || mask == DType::F32) && of_mask.batch == n.batch && of_mask.heads == n.heads && n.columns % run == 0;
  is_wide = is_result && mask == DType::F32;
  pitch = is_result ? n.columns : tiles(n.columns, 8) * 8;
  bytes = n.batch * n.heads * n.rows * pitch * dtype_bytes(is_wide ? mask : q);
}

OnePassBytes::OnePassBytes(const OpCall& grad) {
  const AttentionSizes n(grad);
  const int64_t row_tiles = n.batch * n.heads * tiles(n.rows, cuda::one_pass_rows),
                widest = std::max(n.depth, n.value_depth);
  constexpr int64_t float_bytes = sizeof(float);
  parts = cuda::one_pass_parts(one_pass_steps(grad), n.batch * n.kv_heads, n.heads / n.kv_heads);
  sums = row_tiles * cuda::one_pass_rows * cuda::one_pass_depth(widest) * float_bytes;
  partials = parts > 1 ? parts * n.batch * n.columns * n.kv_heads * (n.depth + n.value_depth) * float_bytes : 0;
  rows = row_products_bytes(grad);
  const int64_t numbers = row_tiles * cuda::one_pass_turns(widest) + 1;  // turns, and the next block
  all = sums + partials + 2 * rows + numbers * static_cast<int64_t>(sizeof(int32_t));
}

int64_t next_rows_bytes(const OpCall& call) {
  constexpr int64_t aligned_bytes = 16;
  const AttentionSizes n(call);
  const int64_t widest = std::max(n.depth, n.value_depth);
  return widest > 32 && widest <= 64 ? aligned_bytes : 0;
}

int64_t segment_tiles_bytes(const OpCall& call, size_t mask) {
  constexpr int64_t tile_rows = 64, tile_bytes = 16;
  if (!call.has(mask + attention_segments)) return 0;
  const Shape& segments = call.operand(mask + attention_segments).shape;
  return segments[0] * tiles(segments[1], tile_rows) * tile_bytes;
}

int64_t column_tiles_bytes(const OpCall& call, size_t mask) {
  if (!call.has(mask)) return 0;
  const AttentionSizes n(call);
  const Shape steps = mask_steps(call.operand(mask), n);
  if (steps[1] != 0 || steps[2] != 0) return 0;
  return (steps[0] != 0 ? n.batch : 1) * tiles(n.columns, noted_columns);
}

Dropout attention_dropout(const Attrs& attrs) {
  static_assert(dropout_rounds == DropoutRule::rounds);
  const double ratio = attrs.get_float("dropout");
  if (ratio == 0) return {};
  const DropoutRule rule = DropoutRule::of_probabilities(ratio);
  Dropout dropout{rule.blocks(), static_cast<float>(rule.kept_share()), static_cast<float>(rule.factor())};
  for (int i = 0; i < rule.bits; ++i) dropout.threshold_zeros[i] = (rule.dropped >> i & 1) - 1;
  return dropout;
}

int64_t first_dropout_block(const Attrs& attrs) {
  const DropoutRule rule = DropoutRule::of_probabilities(attrs.get_float("dropout"));
  return attrs.get_int("first_draw") / DropoutRule::columns_per_word * rule.blocks();
}

llvm::ArrayRef<CudaCandidate> attention_candidates() { return candidates; }

}  // namespace plimsoll
