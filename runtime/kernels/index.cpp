#include "kernels/cuda/index/index_workspace.h"
#include "kernels/cuda/index/sorted_lines.h"
#include "runtime/kernels/cuda_candidate.h"

#include <algorithm>
#include <cstdint>
#include <limits>

// Ops that pick or put elements by index, or go by their order along an axis.

namespace plimsoll {
namespace {

// Sorted positions and keys are 32 bits wide.
constexpr int64_t max_positions = std::numeric_limits<int32_t>::max();
constexpr int64_t max_keys = std::numeric_limits<uint32_t>::max();

bool accepts_gather_grad(const OpCall& call, llvm::ArrayRef<Type> results) {
  const DType dx = results[0].dtype, dy = call["dy"].dtype;
  return is_float(dx) && !is_f8(dx) && (dy == dx || (dx == DType::F32 && is_16_bit_float(dy))) &&
         call["indices"].elements() <= max_positions && call.get_int("size") < max_positions;
}

int64_t gather_grad_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  const AxisShape dx = split_axis(results[0].shape, call.get_int("axis"));
  return cuda::gather_grad_workspace_bytes(dx.outer, dx.length, dx.inner, call["indices"].elements(),
                                           results[0].dtype == DType::F64 ? 8 : 4);
}

bool accepts_sort_indices(const OpCall& call, llvm::ArrayRef<Type>) { return is_label(call["indices"].dtype); }

int64_t sort_indices_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return cuda::sort_indices_workspace_bytes(call["indices"].elements());
}

bool accepts_segment_reduce(const OpCall& call, llvm::ArrayRef<Type> results) {
  const DType y = results[0].dtype, x = call["x"].dtype;
  const bool widens = call.get_string("reduction") == "add" && y == DType::F32 && is_16_bit_float(x);
  return is_float(y) && !is_f8(y) && (x == y || widens);
}

int64_t segment_reduce_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  if (call.get_string("reduction") == "none") return 0;
  const int64_t inner = element_count(llvm::ArrayRef<int64_t>(results[0].shape).drop_front());
  return cuda::segment_reduce_workspace_bytes(1, inner, call["order"].elements(),
                                              results[0].dtype == DType::F64 ? 8 : 4);
}

// Measured on an H200, of 1,024 to 18 million indices: each pass of 8 bits has three launches and moves the pairs.
double sorted_us(int64_t indices, int64_t rows) {
  constexpr double around_us = 4, min_pass_us = 15.8, pass_us = 10, index_us = 36e-6;
  int passes = 0;
  while (passes < 4 && (rows - 1) >> (8 * passes) > 0) ++passes;
  return around_us + passes * std::max(min_pass_us, pass_us + index_us * static_cast<double>(indices));
}

double memory_us(double bytes, const DeviceDescription& device) { return bytes / (device.memory_gb_per_s * 1e3); }

double launched_us(const DeviceDescription& device) { return device.launch_us + device.kernel_us; }

double sort_indices_us(const OpCall& call, const DeviceDescription& device) {
  if (device.memory_gb_per_s <= 0) return 0;
  return sorted_us(call["indices"].elements(), call.get_int("size")) + launched_us(device);
}

// Measured on an H200: entries lie apart, so that each takes a little more than its bytes; there is a thread for 16
// bytes of the result, which goes through its row's entries, up to a chunk of them, one after the other.
double reduced_us(int64_t entries, int64_t rows, double bytes, const Type& y, bool has_chunks,
                  const DeviceDescription& device) {
  constexpr double more_launches_us = 5, entry_us = 8e-6, narrow_entry_us = 18e-6, thread_us = 3.5e-6,
                   narrow_thread_us = 7e-6, step_us = 0.16;
  const bool narrow = is_16_bit_float(y.dtype);
  const double per_row = static_cast<double>(entries) / static_cast<double>(std::max<int64_t>(rows, 1));
  const double of_chunks = has_chunks ? more_launches_us + step_us * std::min<double>(per_row, cuda::segment_chunk) : 0;
  return memory_us(bytes, device) + (narrow ? narrow_entry_us : entry_us) * static_cast<double>(entries) +
         (narrow ? narrow_thread_us : thread_us) * static_cast<double>(y.bytes()) / 16 + of_chunks;
}

double segment_reduce_us(const OpCall& call, const DeviceDescription& device) {
  if (device.memory_gb_per_s <= 0) return 0;
  const Types results = llvm::cantFail(infer(call));
  const int64_t entries = call["order"].elements();
  const bool has_chunks = call.get_string("reduction") != "none" && entries > cuda::segment_chunk;
  return reduced_us(entries, results[0].shape[0], static_cast<double>(moved_bytes(call, results)), results[0],
                    has_chunks, device) +
         launched_us(device);
}

cuda::GatherLanes gather_lanes(const OpCall& call) {
  const Type& x = call["x"];
  return {x.shape[1] / call.get_int("heads"), dtype_bytes(x.dtype),
          call.has("factors") ? cuda::GatherBlocks::Heads : cuda::GatherBlocks::Any};
}

// Rows, halves of chunks, and places of weights are counted in 32 bits.
bool accepts_gather_sum(const OpCall& call, llvm::ArrayRef<Type> results) {
  for (llvm::StringLiteral name :
       {llvm::StringLiteral("x"), llvm::StringLiteral("weights"), llvm::StringLiteral("factors")})
    if (call.has(name) && !computes_in_f32(call[name].dtype)) return false;
  const int64_t entries = call["order"].elements(), heads = call.get_int("heads");
  return computes_in_f32(results[0].dtype) && call["x"].shape[0] <= max_positions && call["x"].shape[1] > 0 &&
         entries * heads <= max_positions && results[0].shape[0] + entries <= max_positions &&
         (!call.has("factors") || gather_lanes(call).blocks == 1);
}

int64_t gather_sum_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return cuda::segment_reduce_workspace_bytes(1, call["x"].shape[1], call["order"].elements(), 4);
}

// Measured on an H200, rows of 24 to 2048 bytes: each lane's runs take their time wherever x lies, and nearly as long
// where a head leaves lanes idle. Products cost arithmetic.
double gather_sum_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double run_us = 3.7e-6, narrow_run_us = 4.3e-6, weight_us = 3.4e-6, product_us = 0.37e-6;
  if (device.memory_gb_per_s <= 0) return 0;
  const Types results = llvm::cantFail(infer(call));
  const cuda::GatherLanes lanes = gather_lanes(call);
  const int64_t entries = call["order"].elements(), of_heads = entries * call.get_int("heads");
  const double runs = static_cast<double>((of_heads * lanes.blocks * lanes.runs) << lanes.log2_lanes);
  double us = memory_us(static_cast<double>(moved_bytes(call, results) - call["x"].bytes()), device) +
              runs * (is_16_bit_float(call["x"].dtype) ? narrow_run_us : run_us) + launched_us(device);
  if (call.has("weights")) us += weight_us * static_cast<double>(of_heads);
  if (call.has("factors")) us += product_us * static_cast<double>(entries * call["x"].shape[1]);
  return us;
}

// Measured on an H200: of a table that L2 does not hold each row comes from memory every time that it is picked, of a
// smaller one a share of them. Short rows take as long as their indices.
double gather_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double least_share = 0.1, l2_bytes = 50e6, index_us = 8e-6;
  if (device.memory_gb_per_s <= 0) return 0;
  const Types results = llvm::cantFail(infer(call));
  const auto picked = static_cast<double>(results[0].bytes());
  const double share = std::min(1.0, least_share + static_cast<double>(call["x"].bytes()) / l2_bytes);
  const double bytes_us = memory_us((1 + share) * picked + static_cast<double>(call["indices"].bytes()), device);
  return std::max(bytes_us, index_us * static_cast<double>(call["indices"].elements())) + launched_us(device);
}

double sorted_gather_grad_us(const OpCall& call, const DeviceDescription& device) {
  if (device.memory_gb_per_s <= 0) return 0;
  const Types results = llvm::cantFail(infer(call));
  const int64_t count = call["indices"].elements(), size = call.get_int("size");
  auto bytes = static_cast<double>(moved_bytes(call, results));
  if (call.has("addend") && count < size)  // in its place, where rows that nothing names stay as they are
    bytes -=
        2 * static_cast<double>(results[0].bytes()) * static_cast<double>(size - count) / static_cast<double>(size);
  return sorted_us(count, size) + reduced_us(count, size, bytes, results[0], count > cuda::segment_chunk, device) +
         launched_us(device);
}

// One warp after the other adds what it finds. Of many indices, a row that most of them name would take a block too
// long: 5.5 ms where 262,144 codes name few of 512 rows.
bool accepts_gather_grad_scan(const OpCall& call, llvm::ArrayRef<Type> results) {
  constexpr int64_t most_indices = 65536;
  if (call["indices"].elements() > most_indices) return false;
  const AxisShape dx = split_axis(results[0].shape, call.get_int("axis"));
  return accepts_gather_grad(call, results) && computes_in_f32(results[0].dtype) && cuda::ScannedRows::fit(dx.inner) &&
         call.get_int("size") > 0;
}

// Blocks of which two share a multiprocessor look through all indices, 128 of a warp's at a time, and add what they
// find one row after the other.
double gather_grad_scan_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double block_us = 0.5, look_us = 1.1, found_us = 0.5, looked_at_once = 128;
  if (device.memory_gb_per_s <= 0) return 0;
  const Types results = llvm::cantFail(infer(call));
  const AxisShape dx = split_axis(results[0].shape, call.get_int("axis"));
  const cuda::ScannedRows scanned(dx.outer, dx.length, dx.inner);
  const auto count = static_cast<double>(call["indices"].elements());
  const double of_warp = count / cuda::scan_warps;
  const double found = of_warp * static_cast<double>(scanned.rows) / static_cast<double>(dx.length);
  const int64_t waves = divide_up(scanned.blocks, 2 * std::max<int64_t>(device.multiprocessors, 1));
  return static_cast<double>(waves) * (block_us + look_us * of_warp / looked_at_once + found_us * found) +
         static_cast<double>(moved_bytes(call, results)) / (device.memory_gb_per_s * 1e3) + device.launch_us +
         device.kernel_us;
}

// What is added: the updates of scatter_elements, or the gradient of what was picked.
bool is_scatter(const OpCall& call) { return &call.op == &op_scatter_elements; }
const Type& updates_of(const OpCall& call) { return is_scatter(call) ? call["updates"] : call["dy"]; }

bool accepts_scatter(const OpCall& call, llvm::ArrayRef<Type> results) {
  return ranks_fit_without_f8(call, results) && results[0].elements() <= max_keys &&
         call["indices"].elements() <= max_positions;
}

bool accepts_scatter_elements(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_scatter(call, results) && updates_of(call).elements() <= max_positions;
}

int64_t scatter_elements_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return cuda::sort_workspace_bytes(updates_of(call).elements());
}

// Lines of a whole along the axis, with as many picked elements as lines in every other dimension.
bool are_lines(const OpCall& call, const Type& whole, const Type& picked) {
  const auto axis = static_cast<size_t>(call.get_int("axis"));
  for (size_t d = 0; d < whole.shape.size(); ++d)
    if (d != axis && whole.shape[d] != picked.shape[d]) return false;
  return is_label(call["indices"].dtype) && whole.shape[axis] <= max_positions && picked.shape[axis] <= max_positions;
}

bool accepts_gather_lines(const OpCall& call, llvm::ArrayRef<Type> results) {
  return call.get_int("axis") == results[0].rank() - 1 && are_lines(call, call["x"], results[0]);
}

// Sums of floats along lines that fit shared memory.
bool accepts_lines(const OpCall& call, llvm::ArrayRef<Type> results) {
  const Type& y = results[0];
  if (is_scatter(call) && call.get_string("reduction") != "add") return false;
  if (!computes_in_f32(y.dtype)) return false;
  const AxisShape lines = split_axis(y.shape, call.get_int("axis"));
  return are_lines(call, y, updates_of(call)) && cuda::lines_fit(lines.length, lines.inner) &&
         lines.outer * lines.inner <= max_positions;
}

// How many slices have each set of indices.
int64_t slices_per_set(const OpCall& call) {
  return updates_of(call).elements() / std::max<int64_t>(call["indices"].elements(), 1);
}

bool accepts_shared_lines(const OpCall& call, llvm::ArrayRef<Type> results) {
  const AxisShape lines = split_axis(results[0].shape, call.get_int("axis"));
  return slices_per_set(call) > 1 && lines.inner == 1 && accepts_lines(call, results) &&
         cuda::shared_lines_fit(lines.length, call["indices"].shape.back());
}

int64_t shared_lines_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  const int64_t count = call["indices"].shape.back();
  return cuda::shared_lines_workspace_bytes(call["indices"].elements() / std::max<int64_t>(count, 1),
                                            results[0].shape.back(), count);
}

// What sums along lines read and write: a base if there is one, updates, indices and the result.
double bytes_of_sums(const OpCall& call) {
  const Type& updates = updates_of(call);
  const int64_t lines = updates.bytes() / std::max<int64_t>(updates.shape[call.get_int("axis")], 1);
  const int64_t y = is_scatter(call) ? call["x"].bytes() : lines * call.get_int("size");
  const bool has_base = is_scatter(call) || call.has("addend");
  return static_cast<double>((has_base ? 2 : 1) * y + updates.bytes() + call["indices"].bytes());
}

// At the share of a copy's speed that was measured: where elements of a line lie side by side, and where they lie
// apart.
double lines_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double of_copy[] = {0.27, 0.12};
  if (device.memory_gb_per_s <= 0) return 0;
  const bool rows = call.get_int("axis") == updates_of(call).rank() - 1;
  return bytes_of_sums(call) / (device.memory_gb_per_s * 1e3 * of_copy[rows ? 0 : 1]) + device.launch_us +
         device.kernel_us;
}

// Two launches, of which the first takes a warp for each set; measured on 98,304 lines of 512 with as many updates.
double shared_lines_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double of_copy = 0.42;
  if (device.memory_gb_per_s <= 0) return 0;
  return bytes_of_sums(call) / (device.memory_gb_per_s * 1e3 * of_copy) + 2 * (device.launch_us + device.kernel_us);
}

// Sorting and the sums of one place after the other, measured on an H200 with up to 18 million indices.
double scatter_elements_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double index_us = 20e-6;
  if (device.memory_gb_per_s <= 0) return 0;
  const int64_t count = updates_of(call).elements(), places = llvm::cantFail(infer(call))[0].elements();
  return sorted_us(count, places) + index_us * static_cast<double>(count) + launched_us(device);
}

int64_t scatter_nd_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return cuda::sort_workspace_bytes(element_count(llvm::ArrayRef<int64_t>(call["indices"].shape).drop_back()));
}

// The sort, a copy of x, and a thread for each element of an update; fitted to 7 calls by up to 1.1 million indices.
double scatter_nd_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double element_us = 4.55e-6;
  if (device.memory_gb_per_s <= 0) return 0;
  const llvm::ArrayRef<int64_t> whole = call["x"].shape, indices = call["indices"].shape;
  const int64_t rows = element_count(whole.take_front(static_cast<size_t>(indices.back())));
  return sorted_us(element_count(indices.drop_back()), rows) +
         element_us * static_cast<double>(call["updates"].elements()) +
         memory_us(static_cast<double>(2 * call["x"].bytes()), device) + launched_us(device);
}

cuda::ScannedParts scanned_parts(const OpCall& call) {
  const AxisShape x = split_axis(call["x"].shape, call.get_int("axis"));
  return {x.length, x.inner};
}

bool accepts_scan_parts(const OpCall& call, llvm::ArrayRef<Type> results) {
  return has_no_f8(call, results) && scanned_parts(call).parts > 1;
}

int64_t scan_parts_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  const AxisShape x = split_axis(call["x"].shape, call.get_int("axis"));
  return cuda::scan_parts_workspace_bytes(x.outer, scanned_parts(call).parts, x.inner);
}

bool accepts_short_top_k(const OpCall& call, llvm::ArrayRef<Type> results) {
  constexpr int64_t most_looks = 256;  // at elements, by one thread
  return has_no_f8(call, results) && call.get_int("k") * call["x"].shape[call.get_int("axis")] <= most_looks;
}

// A line is read once for each of the k.
bool accepts_top_k(const OpCall& call, llvm::ArrayRef<Type> results) {
  const int64_t length = call["x"].shape[call.get_int("axis")];
  return has_no_f8(call, results) && (call.get_int("k") <= 64 || length <= 4096);
}

bool accepts_sorted_top_k(const OpCall& call, llvm::ArrayRef<Type>) {
  const Type& x = call["x"];
  return (x.dtype == DType::F32 || x.dtype == DType::F16 || x.dtype == DType::BF16) &&
         x.shape[call.get_int("axis")] <= int64_t{1} << cuda::SortedLines::max_bits;
}

// How many warps of `per_warp` lines each multiprocessor has.
double warps_of(const AxisShape& x, int64_t per_warp, const DeviceDescription& device) {
  return static_cast<double>(x.outer * x.inner) /
         static_cast<double>(per_warp * std::max<int64_t>(device.multiprocessors, 1));
}

// Measured on an H200: a step takes its latency and what the other warps' take, with a warp a line or a thread a line.
double scan_us(const OpCall& call, const DeviceDescription& device) {
  if (device.memory_gb_per_s <= 0) return 0;
  const AxisShape x = split_axis(call["x"].shape, call.get_int("axis"));
  const double of_steps = x.inner < 32
                              ? static_cast<double>(divide_up(x.length, 32)) * (0.58 + 0.0245 * warps_of(x, 1, device))
                              : static_cast<double>(x.length) * (0.42 + 0.0075 * warps_of(x, 32, device));
  return std::max(of_steps, memory_us(static_cast<double>(2 * call["x"].bytes()), device)) + launched_us(device);
}

// The same of up to 120 million elements of any type; blocks take as long where their parts reach over an end.
double scan_parts_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double second_launch_us = 4, element_us = 11e-6;
  if (device.memory_gb_per_s <= 0) return 0;
  const AxisShape x = split_axis(call["x"].shape, call.get_int("axis"));
  const cuda::ScannedParts scanned(x.length, x.inner);
  const int64_t length = scanned.parts * scanned.threads_per_line * cuda::part_run;
  const int64_t lines = x.outer * divide_up(x.inner, scanned.columns) * scanned.columns;
  return element_us * static_cast<double>(lines * length) + second_launch_us + launched_us(device);
}

// Warps search a line each, 32 elements at a time: where many share a multiprocessor these take turns, and else each
// step takes its latency.
double searches_us(const OpCall& call, int64_t searches, const DeviceDescription& device) {
  constexpr double search_us = 0.06, step_us = 0.0135, alone_us = 1, step_alone_us = 0.29;
  if (device.memory_gb_per_s <= 0) return 0;
  const AxisShape x = split_axis(call["x"].shape, call.get_int("axis"));
  const auto steps = static_cast<double>(divide_up(x.length, 32));
  const double of_search =
      std::max(warps_of(x, 1, device) * (search_us + step_us * steps), alone_us + step_alone_us * steps);
  return static_cast<double>(searches) * of_search + launched_us(device);
}

double search_us(const OpCall& call, const DeviceDescription& device) { return searches_us(call, 1, device); }

double repeated_search_us(const OpCall& call, const DeviceDescription& device) {
  return searches_us(call, call.get_int("k"), device);
}

// A thread looks at every element of its line for each of the k.
double short_top_k_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double look_us = 0.27, look_of_warp_us = 0.0118;
  if (device.memory_gb_per_s <= 0) return 0;
  const AxisShape x = split_axis(call["x"].shape, call.get_int("axis"));
  return static_cast<double>(call.get_int("k") * x.length) * (look_us + look_of_warp_us * warps_of(x, 32, device)) +
         launched_us(device);
}

// Measured on an H200, 8 lines of 1600 to 16384 lines of 54: shared memory passes the pairs of every step, and the keys
// when they are made and read.
double sorted_top_k_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double pair_us = 2.5e-4, key_us = 1e-3;  // of a multiprocessor
  if (device.memory_gb_per_s <= 0) return 0;
  const AxisShape x = split_axis(call["x"].shape, call.get_int("axis"));
  const cuda::SortedLines shape(x.length, call.get_int("k"));
  double steps = shape.run_bits * (shape.run_bits + 1) / 2.0;
  for (int halvings = 1; halvings <= shape.line_bits - shape.run_bits; ++halvings)
    steps += (shape.run_bits + 1) * std::pow(0.5, halvings);  // of the share of runs that are left
  return std::max(warps_of(x, shape.per_block, device), 1.0) * shape.keys() * (pair_us / 2 * steps + key_us) +
         launched_us(device);
}

constexpr CudaCandidate index_table[] = {
    {.op = op_gather, .name = "rows", .accepts = accepts_everything, .predicted_us = gather_us},
    {.op = op_gather_grad, .name = "scan", .accepts = accepts_gather_grad_scan, .predicted_us = gather_grad_scan_us},
    {.op = op_gather_grad,
     .name = "sorted",
     .accepts = accepts_gather_grad,
     .workspace_bytes = gather_grad_workspace,
     .predicted_us = sorted_gather_grad_us},
    {.op = op_sort_indices,
     .name = "radix",
     .accepts = accepts_sort_indices,
     .workspace_bytes = sort_indices_workspace,
     .predicted_us = sort_indices_us},
    {.op = op_segment_reduce,
     .name = "rows",
     .accepts = accepts_segment_reduce,
     .workspace_bytes = segment_reduce_workspace,
     .predicted_us = segment_reduce_us},
    {.op = op_gather_sum,
     .name = "groups",
     .accepts = accepts_gather_sum,
     .workspace_bytes = gather_sum_workspace,
     .predicted_us = gather_sum_us},
    {op_gather_elements, "lines", accepts_gather_lines},
    {op_gather_elements, "elements", ranks_fit},
    {.op = op_gather_elements_grad,
     .name = "shared_lines",
     .accepts = accepts_shared_lines,
     .workspace_bytes = shared_lines_workspace,
     .predicted_us = shared_lines_us},
    {.op = op_gather_elements_grad, .name = "lines", .accepts = accepts_lines, .predicted_us = lines_us},
    {.op = op_gather_elements_grad,
     .name = "sorted",
     .accepts = accepts_scatter_elements,
     .workspace_bytes = scatter_elements_workspace,
     .predicted_us = scatter_elements_us},
    {op_gather_nd, "tuples", ranks_fit},
    {op_one_hot, "elements", accepts_everything},
    {.op = op_scatter_elements, .name = "lines", .accepts = accepts_lines, .predicted_us = lines_us},
    {.op = op_scatter_elements,
     .name = "sorted",
     .accepts = accepts_scatter_elements,
     .workspace_bytes = scatter_elements_workspace,
     .predicted_us = scatter_elements_us},
    {.op = op_scatter_nd,
     .name = "sorted",
     .accepts = accepts_scatter,
     .workspace_bytes = scatter_nd_workspace,
     .predicted_us = scatter_nd_us},
    {.op = op_cumsum, .name = "scan", .accepts = has_no_f8, .predicted_us = scan_us},
    {.op = op_cumsum,
     .name = "parts",
     .accepts = accepts_scan_parts,
     .workspace_bytes = scan_parts_workspace,
     .predicted_us = scan_parts_us},
    {op_triangular, "elements", accepts_everything},
    {op_reverse_sequence, "elements", accepts_everything},
    {.op = op_top_k, .name = "short_lines", .accepts = accepts_short_top_k, .predicted_us = short_top_k_us},
    {.op = op_top_k, .name = "sorted_lines", .accepts = accepts_sorted_top_k, .predicted_us = sorted_top_k_us},
    {.op = op_top_k, .name = "repeated_search", .accepts = accepts_top_k, .predicted_us = repeated_search_us},
    {.op = op_arg_max, .name = "search", .accepts = has_no_f8, .predicted_us = search_us},
    {.op = op_arg_min, .name = "search", .accepts = has_no_f8, .predicted_us = search_us},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> index_candidates() { return index_table; }

}  // namespace plimsoll
