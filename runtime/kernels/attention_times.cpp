#include "runtime/kernels/attention_times.h"

#include "kernels/cuda/attention/few_rows_sizes.h"
#include "kernels/cuda/attention/one_pass_sizes.h"
#include "kernels/cuda/attention/short_forward_sizes.h"
#include "kernels/cuda/attention/whole_heads_sizes.h"
#include "kernels/division.h"
#include "runtime/kernels/attention.h"

namespace plimsoll {
namespace {

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

// Small windows take a share of a copy's speed, and move tensors of rows and of columns, or so long for a head where
// little is moved. On Hopper the copy engine moves heads of 32 elements nearly as fast as a copy does, once the first
// windows and what the mask adds have come and until the last results have gone: fitted to 64 to 4096 windows of 3 to
// 24 heads on an H200 (2026-12-01).
struct WindowTimes {
  double of_copy, by_engine;
  int64_t row_tensors, column_tensors;
  double head_ns, head_ns_by_engine;  // on all multiprocessors
  double engine_start_us;
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
                                       {0.72, 0.98, 2, 2, 4, 3, 3.6}};
// On Hopper, of heads of 65 to 128 elements without dropout, and of up to 80 without forms besides.
constexpr AttentionTimes forward_128_times{
    forward_times.any, {24, 0.32, 0.003, 0, 0.15, 0.9, 0.35, 1, 192, 0, 1, 192}, forward_times.windows};
constexpr AttentionTimes forward_80_times{
    forward_times.any, {24, 0.6, 0, 0, 0.15, 0, 0, 1, 192, 0, 1, 192}, forward_times.windows};
// On Hopper, of heads of 33 to 64 elements whose blocks take rows after rows.
constexpr AttentionTimes short_forward_times{
    forward_times.any, {4, 0.15, 0.0059, 0.36, 0.05, 0.37, 0, 1, 64, 0}, forward_times.windows};
constexpr AttentionTimes backward_times{{5, 0.2, 0.0556, 1.1, 0.38, 3, 1, 3, 128, 1},
                                        {5, 1.55, 0.0194, 1.1, 0.44, 1.7, 0.8, 3, 64, 1, 2.35},
                                        {0.63, 1, 4, 4, 12, 6, 2.6}};
constexpr MmaTimes mask_grad_mma_times{5, 0.3, 0.025, 0.6, 0.16, 1.5, 0.15, 3, 64, 0};
constexpr AttentionTimes mask_grad_times{mask_grad_mma_times, mask_grad_mma_times, {0.57, 0.57, 3, 2, 12, 6, 0}};
constexpr double measured_tflops = 790, measured_multiprocessors = 132;
// Forward in a step beside what a call takes behind calls like it: columns come before the first rows, and the last
// rows' results go alone. As measured in eight nets.
double with_start_us(double us) {
  constexpr double start_us = 6;
  return us > 0 ? us + start_us : us;
}

// Backward reads both once before all else.
double y_and_dy_us(const OpCall& grad, const DeviceDescription& device) {
  return static_cast<double>(grad.operand(3).bytes() + grad.operand(5).bytes()) / (device.memory_gb_per_s * 1e3);
}

double windows_us(const OpCall& call, const WindowTimes& times, const DeviceDescription& device) {
  const AttentionSizes n(call);
  const int64_t rows = times.row_tensors * n.rows + times.column_tensors * n.columns;
  const auto bytes = static_cast<double>(n.batch * n.heads * n.depth * rows * dtype_bytes(call.operand(0).dtype));
  const bool has_engine = device.compute_capability == 90 && n.depth == 32;
  // Of windows of 16 rows with heads of 8 elements, 290 and 642 us for 100,352 of them.
  constexpr int64_t few = 16;
  constexpr double of_few = 0.6;
  const bool is_small = std::max({n.rows, n.columns, n.depth}) <= few;
  const double heads_us = static_cast<double>(n.batch * n.heads) *
                          (has_engine ? times.head_ns_by_engine : times.head_ns) * (is_small ? of_few : 1) * 1e-3 *
                          measured_multiprocessors / std::max(device.multiprocessors, 1);
  const double of_copy = has_engine ? times.by_engine : times.of_copy;
  return std::max(bytes / (of_copy * device.memory_gb_per_s * 1e3), heads_us) + device.launch_us + device.kernel_us +
         (has_engine ? times.engine_start_us : 0);
}

// Heads follow one another on as many places as blocks find.
template <const FewRowsTimes& times, size_t mask>
double of_few_rows_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double of_copy = 0.62, forms_us = 4, mega = 1 << 20;
  constexpr int64_t shared_bytes = 227 << 10, of_block = 2 << 10, most_blocks = 2, places_per_word = 4;
  if (device.memory_gb_per_s <= 0) return 0;
  const AttentionSizes n(call);
  const cuda::FewRows tile(n.rows, n.columns, n.depth);
  const int64_t bytes_of_head = (mask == attention_mask ? tile.forward_bytes() : tile.gradient_bytes()) + of_block;
  const int64_t blocks = std::min(shared_bytes / bytes_of_head, most_blocks), heads = n.batch * n.heads;
  const int64_t turns = divide_up(heads, blocks * std::max(device.multiprocessors, 1));
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
  const int64_t row_tiles = divide_up(n.rows, tile), column_tiles = divide_up(n.columns, tile);
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
  const auto rows = static_cast<double>(divide_up(n.rows, times.row_tile) * times.row_tile),
             columns = static_cast<double>(divide_up(n.columns, 64) * 64);
  const double blocks = heads * static_cast<double>(divide_up(n.rows, times.own_rows) +
                                                    times.both_sides * divide_up(n.columns, times.own_rows));
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

// Of the copy of a mask whose rows end within a 16-byte word.
double mask_copy_us(const OpCall& call, size_t mask, const DeviceDescription& device) {
  constexpr double of_copy = 0.6;
  const int64_t copied = mask_copy_bytes(call, mask);
  if (copied == 0) return 0;
  return static_cast<double>(copied + call.operand(mask).bytes()) / (of_copy * device.memory_gb_per_s * 1e3) +
         device.launch_us + device.kernel_us;
}

template <const AttentionTimes& all_times, size_t mask>
double mma_us(const OpCall& call, const DeviceDescription& device) {
  if (are_small_windows(call, mask) && device.memory_gb_per_s > 0) return windows_us(call, all_times.windows, device);
  const AttentionSizes n(call);
  const int64_t widest = std::max(n.depth, n.value_depth);
  // Forward, the copy engine brings rows of a multiple of 16 bytes.
  const bool has_whole_words = mask != attention_mask || (n.depth % 8 == 0 && n.value_depth % 8 == 0);
  const bool is_of_size = widest > 32 || (mask == attention_mask && is_short_forward(call));
  const bool has_warpgroups = device.compute_capability == 90 && is_of_size && has_whole_words;
  const double us = pairs_us<mask>(call, has_warpgroups ? all_times.warpgroups : all_times.any, device);
  return mask == attention_mask ? with_start_us(us) : us;
}

// As attention_warpgroup.cu asks.
bool has_forms(const OpCall& call) {
  constexpr size_t mask = attention_mask;
  return call.attrs.get_float("softcap") > 0 || call.has(mask + attention_slopes) ||
         call.has(mask + attention_segments) ||
         (call.has(mask) && mask_steps(call.operand(mask), AttentionSizes(call))[2] != 0);
}

// What one pass takes on an H200: a block of columns beside its steps, and a pair of a row and a column in these.
struct OnePassTimes {
  double block_us, pair_ps, dropout_ps, columns_ps, mask_ps, cap_ps;
};
// By the depth of tiles.
OnePassTimes one_pass_times(int64_t depth) {
  switch (depth) {
    case 32: return {3, 1.1, 0.38, 0.1, 0.4, 0};
    case 64: return {3, 1.48, 0.38, 0.1, 0.74, 0.2};
    case 80: return {4, 1.85, 0.55, 0.1, 0, 0};
    case 96: return {7, 2.05, 0.83, 0.1, 0, 0};
    case 128: return {5, 2.59, 0.55, 0.1, 0, 0.4};
    case 192: return {4, 6.1, 0.55, 0.1, 0, 0};
    default: return {4, 7.68, 0.55, 0.1, 0, 0};
  }
}

// On the vector units, in TFLOP/s as measured on an H200, where products in f32 reach 51.
constexpr double flash_tflops = 11, flash_grad_tflops = 8, measured_f32_tflops = 51;
// A block there, and an element of a head in a sample of the few blocks that sum a mask's gradient.
constexpr double flash_block_us = 1, flash_sample_us = 2, flash_element_us = 0.033;

// Times as many operations as tiles have that hold a head: 16 or 32 rows and columns, of 32, 64, 128 or 256 elements.
struct FlashTiles {
  double padding, blocks;  // the latter: of rows and of columns

  explicit FlashTiles(const AttentionSizes& n) {
    const double depth = padded_depth(n), lengths = static_cast<double>(n.depth + n.value_depth);
    const int64_t tile = depth > 128 ? 16 : 32, rows = divide_up(n.rows, tile), columns = divide_up(n.columns, tile);
    const auto pairs = static_cast<double>(n.rows * n.columns), tile_pairs = static_cast<double>(tile * tile);
    // Sums over a head's elements stop at its end, results are of whole tiles.
    padding = static_cast<double>(rows * columns) * tile_pairs / std::max(pairs, 1.0) * (lengths + 2 * depth) /
              std::max(2 * lengths, 1.0);
    blocks = static_cast<double>(n.batch * n.heads * std::max(rows, columns));
  }
};

template <const OpDef& op, const double& tflops>
double flash_flops_us(const OpCall& call, int64_t launches, const DeviceDescription& device) {
  const double f32_tflops = device.matmul_tflops_for(DType::F32);
  if (f32_tflops <= 0) return 0;
  const FlashTiles tiles{AttentionSizes(call)};
  const auto count = static_cast<double>(launches);
  return op.flops(call, {}) * tiles.padding / tflops * 1e-6 * measured_f32_tflops / f32_tflops +
         count * (tiles.blocks / std::max(device.multiprocessors, 1) * flash_block_us + device.launch_us +
                  device.kernel_us);
}

}  // namespace

double few_rows_us(const OpCall& call, const DeviceDescription& device) {
  return of_few_rows_us<few_rows_times, attention_mask>(call, device);
}

double few_rows_grad_us(const OpCall& grad, const DeviceDescription& device) {
  return of_few_rows_us<few_rows_grad_times, attention_grad_mask>(grad, device);
}

double attention_us(const OpCall& call, const DeviceDescription& device) {
  const AttentionSizes n(call);
  constexpr size_t mask = attention_mask;
  if (is_short_forward(call)) {
    const bool has_row_mask = call.has(mask) && mask_steps(call.operand(mask), n)[2] != 0;
    const bool is_shared = !are_small_windows(call, mask) && !has_row_mask && call.attrs.get_float("dropout") == 0 &&
                           !call.attrs.get_int("causal") && call.attrs.get_int("window") == 0 &&
                           device.compute_capability == 90 &&
                           cuda::shares_columns(n.batch * n.heads, n.rows, std::max(device.multiprocessors, 1));
    const double us = mma_us<short_forward_times, mask>(call, device) * (is_shared ? cuda::of_shared_columns : 1);
    return us > 0 && copies_mask(call, device.compute_capability == 90) ? us + mask_copy_us(call, mask, device) : us;
  }
  if (padded_depth(n) != 128 || call.attrs.get_float("dropout") > 0) return mma_us<forward_times, mask>(call, device);
  const bool is_80 = std::max(n.depth, n.value_depth) <= 80 && !has_forms(call);
  return is_80 ? mma_us<forward_80_times, mask>(call, device) : mma_us<forward_128_times, mask>(call, device);
}

double mma_grad_us(const OpCall& grad, const DeviceDescription& device) {
  return mma_us<backward_times, attention_grad_mask>(grad, device);
}

double mask_grad_us(const OpCall& grad, const DeviceDescription& device) {
  return mma_us<mask_grad_times, attention_grad_mask>(grad, device);
}

// Steps are shared out evenly, but a block takes its own one after the other. Blocks that begin together wait for one
// another's sums; those of dk and dv by part of the heads are written and read again.
double one_pass_us(const OpCall& grad, const DeviceDescription& device) {
  constexpr size_t mask = attention_grad_mask;
  constexpr double waits_us = 6, of_copy = 1;
  const double tflops = device.matmul_tflops_for(grad.operand(0).dtype);
  if (tflops <= 0 || device.memory_gb_per_s <= 0) return 0;
  const AttentionSizes n(grad);
  const bool is_capped = grad.attrs.get_float("softcap") > 0;
  const OnePassTimes times = one_pass_times(one_pass_tile_depth(grad));
  double ps = times.pair_ps;
  if (grad.attrs.get_float("dropout") > 0) ps += times.dropout_ps;
  if (grad.has(mask)) ps += mask_steps(grad.operand(mask), n)[2] == 0 ? times.columns_ps : times.mask_ps;
  if (grad.has(mask + attention_slopes) && !grad.has(mask)) ps += times.columns_ps;
  if (is_capped) ps += times.cap_ps;

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
  return all_steps * step_us +
         per_multiprocessor(key_heads * bytes.parts * divide_up(n.columns, own)) * times.block_us + waits_us + sum_us +
         y_and_dy_us(grad, device) + mask_copy_us(grad, mask, device) + 2 * (device.launch_us + device.kernel_us);
}

// What whole heads take on an H200. Those of up to 64 rows share a multiprocessor and memory, and a part of the quicker
// of the two is not hidden; longer ones follow one another in tiles of rows, and where two blocks fit a multiprocessor
// a tile of each takes little longer than one.
double whole_heads_us(const OpCall& grad, const DeviceDescription& device) {
  constexpr double short_head_us = 1.65, not_hidden = 0.12, begin_us = 3, tile_us = 3.55, paired_tile_us = 4.1,
                   of_32_elements = 0.88;
  const double tflops = device.matmul_tflops_for(grad.operand(0).dtype);
  if (tflops <= 0 || device.memory_gb_per_s <= 0) return 0;
  const AttentionSizes n(grad);
  const int64_t heads = n.batch * n.heads, multiprocessors = std::max(device.multiprocessors, 1);
  const double launch_us = device.launch_us + device.kernel_us, speed = measured_tflops / tflops;
  if (cuda::are_short_heads(n.rows, n.columns)) {
    const auto bytes = static_cast<double>(8 * heads * n.depth * (n.rows + n.columns));
    const double heads_us = static_cast<double>(heads) / static_cast<double>(multiprocessors) * short_head_us * speed;
    const double bytes_us = bytes / (device.memory_gb_per_s * 1e3);
    return std::max(heads_us, bytes_us) + not_hidden * std::min(heads_us, bytes_us) + launch_us;
  }
  const bool are_paired = n.columns <= cuda::max_paired_columns;
  const int64_t of_block = divide_up(heads, multiprocessors * (are_paired ? 2 : 1)) * divide_up(n.rows, 64);
  return static_cast<double>(of_block) * (are_paired ? paired_tile_us : tile_us) * (n.depth > 32 ? 1 : of_32_elements) *
             speed +
         begin_us + launch_us;
}

double flash_us(const OpCall& call, const DeviceDescription& device) {
  return with_start_us(flash_flops_us<op_attention, flash_tflops>(call, 1, device));
}

double flash_grad_us(const OpCall& grad, const DeviceDescription& device) {
  return flash_flops_us<op_attention_grad, flash_grad_tflops>(grad, 2, device);
}

// The mask's gradient in a launch of its own, but for small windows, whose sums stay in registers.
double grad_with_mask_us(const OpCall& call, const DeviceDescription& device) {
  constexpr WindowTimes windows{0.6, 0.97, 4, 4, 0, 0, 4};
  if (are_small_windows(call, attention_grad_mask) && device.memory_gb_per_s > 0)
    return windows_us(call, windows, device) + device.kernel_us;
  return mma_grad_us(call, device) + mask_grad_us(call, device);
}

// dS is written, and read again where it is summed. Rows that are no whole words are written element by element.
double stored_scores_us(const OpCall& call, const DeviceDescription& device) {
  const bool in_words = call["mask"].shape.back() * dtype_bytes(call["mask"].dtype) % 16 == 0;
  const double of_copy = in_words ? 0.8 : 0.06;
  const double other_us = mma_grad_us(call, device);
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

// A block has 16 x 16 elements of the mask's gradient, and goes over the samples and heads that share them one after
// the other.
double flash_with_mask_us(const OpCall& call, const DeviceDescription& device) {
  constexpr int64_t tile = 16, blocks_at_once = 4;
  const double grad_us = flash_grad_us(call, device);
  if (grad_us <= 0) return 0;
  const AttentionSizes n(call);
  const MaskGradSizes of_mask(call["mask"]);
  const int64_t blocks = of_mask.batch * of_mask.heads * divide_up(n.rows, tile) * divide_up(n.columns, tile),
                samples = n.batch * n.heads / std::max<int64_t>(of_mask.batch * of_mask.heads, 1);
  const int64_t turns = divide_up(blocks, blocks_at_once * std::max(device.multiprocessors, 1)) * samples;
  return grad_us + static_cast<double>(turns) *
                       (flash_sample_us + flash_element_us * static_cast<double>(n.depth + n.value_depth));
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

// What cuDNN 9 takes forward on an H200: a block of 128 rows, and a pair of a row and a column that meet in a tile, for
// heads of up to 32, 64 and 128 elements. Of other cards it was not measured: there it comes first.
double cudnn_us(const OpCall& call, const DeviceDescription& device) {
  constexpr MmaTimes of_32{20.4, 0.333, 0, 0, 0, 0, 0, 1, 128, 0, 1, 128},
      of_64{8.6, 0.79, 0, 0, 0, 0, 0, 1, 128, 0, 1, 128}, of_128{8.6, 1.1, 0, 0, 0, 0, 0, 1, 128, 0, 1, 128};
  const double depth = padded_depth(AttentionSizes(call));
  if (device.compute_capability != 90) return 0;
  return with_start_us(pairs_us<attention_mask>(call, depth <= 32 ? of_32 : depth <= 64 ? of_64 : of_128, device));
}

}  // namespace plimsoll
