#include "kernels/cuda/index/index_workspace.h"
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

// Measured on an H200: a sort's launches, and what they and the sums take for each index, of many less than of few.
double sorted_us(int64_t indices) {
  constexpr double launches_us = 24, index_us = 0.0014, many_us = 26, index_of_many_us = 0.0003;
  const auto count = static_cast<double>(indices);
  return launches_us + std::min(index_us * count, many_us + index_of_many_us * count);
}

double sorted_gather_grad_us(const OpCall& call, const DeviceDescription& device) {
  if (device.memory_gb_per_s <= 0) return 0;
  const Types results = llvm::cantFail(infer(call));
  return sorted_us(call["indices"].elements()) +
         static_cast<double>(moved_bytes(call, results)) / (device.memory_gb_per_s * 1e3) + device.launch_us +
         device.kernel_us;
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

// Sorting and the sums of one place after the other, measured on an H200 with 18 and 50 million indices.
double scatter_elements_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double bytes_per_index = 1900;  // that a copy moves meanwhile
  if (device.memory_gb_per_s <= 0) return 0;
  return bytes_per_index * static_cast<double>(updates_of(call).elements()) / (device.memory_gb_per_s * 1e3) +
         device.launch_us + device.kernel_us;
}

int64_t scatter_nd_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return cuda::sort_workspace_bytes(element_count(llvm::ArrayRef<int64_t>(call["indices"].shape).drop_back()));
}

// Rows are read where they lie and added in the order of their indices; fitted to 6 calls by 1.1 million indices.
double scatter_nd_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double times = 4.2;
  if (device.memory_gb_per_s <= 0) return 0;
  const Types results = llvm::cantFail(infer(call));
  return sorted_us(element_count(llvm::ArrayRef<int64_t>(call["indices"].shape).drop_back())) +
         times * static_cast<double>(moved_bytes(call, results)) / (device.memory_gb_per_s * 1e3) + device.launch_us +
         device.kernel_us;
}

// A line is read once for each of the k.
bool accepts_top_k(const OpCall& call, llvm::ArrayRef<Type> results) {
  const int64_t length = call["x"].shape[call.get_int("axis")];
  return has_no_f8(call, results) && (call.get_int("k") <= 64 || length <= 4096);
}

constexpr CudaCandidate index_table[] = {
    {op_gather, "rows", accepts_everything},
    {.op = op_gather_grad, .name = "scan", .accepts = accepts_gather_grad_scan, .predicted_us = gather_grad_scan_us},
    {.op = op_gather_grad,
     .name = "sorted",
     .accepts = accepts_gather_grad,
     .workspace_bytes = gather_grad_workspace,
     .predicted_us = sorted_gather_grad_us},
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
    {op_cumsum, "scan", has_no_f8},
    {op_triangular, "elements", accepts_everything},
    {op_reverse_sequence, "elements", accepts_everything},
    {op_top_k, "repeated_search", accepts_top_k},
    {op_arg_max, "search", has_no_f8},
    {op_arg_min, "search", has_no_f8},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> index_candidates() { return index_table; }

}  // namespace plimsoll
