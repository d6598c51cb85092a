#include "kernels/cuda/index/index_workspace.h"
#include "runtime/kernels/cuda_candidate.h"

#include <cstdint>
#include <limits>

// Ops that pick or put elements by index, or go by their order along an axis.

namespace plimsoll {
namespace {

// Sorted positions and keys are 32 bits wide.
constexpr int64_t max_positions = std::numeric_limits<int32_t>::max();
constexpr int64_t max_keys = std::numeric_limits<uint32_t>::max();

bool accepts_gather_grad(const OpCall& call, llvm::ArrayRef<Type> results) {
  return is_float(results[0].dtype) && !is_f8(results[0].dtype) && call["indices"].elements() <= max_positions &&
         call.get_int("size") < max_positions;
}

int64_t gather_grad_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  const AxisShape dx = split_axis(results[0].shape, call.get_int("axis"));
  return cuda::gather_grad_workspace_bytes(dx.outer, dx.length, dx.inner, call["indices"].elements(),
                                           results[0].dtype == DType::F64 ? 8 : 4);
}

bool accepts_scatter(const OpCall& call, llvm::ArrayRef<Type> results) {
  return ranks_fit_without_f8(call, results) && results[0].elements() <= max_keys &&
         call["indices"].elements() <= max_positions;
}

int64_t scatter_elements_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return cuda::sort_workspace_bytes(call["indices"].elements());
}

// Sums of floats along lines that fit shared memory, with as many indices as lines in every other dimension.
bool accepts_lines(const OpCall& call, llvm::ArrayRef<Type> results) {
  const Type &y = results[0], &indices = call["indices"];
  const auto axis = static_cast<size_t>(call.get_int("axis"));
  if (call.get_string("reduction") != "add" || !computes_in_f32(y.dtype) || !is_label(indices.dtype)) return false;
  for (size_t d = 0; d < y.shape.size(); ++d)
    if (d != axis && y.shape[d] != indices.shape[d]) return false;
  const AxisShape lines = split_axis(y.shape, call.get_int("axis"));
  return cuda::lines_fit(lines.length, lines.inner) && indices.shape[axis] <= max_positions &&
         lines.outer * lines.inner <= max_positions;
}

// x, updates and indices are read once, at the share of a copy's speed that was measured: where elements of a line lie
// side by side, and where they lie apart.
double lines_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double of_copy[] = {0.27, 0.12};
  if (device.memory_gb_per_s <= 0) return 0;
  const Type &x = call["x"], &indices = call["indices"];
  const AxisShape lines = split_axis(x.shape, call.get_int("axis"));
  const auto bytes = static_cast<double>(2 * x.bytes() + call["updates"].bytes() + indices.bytes());
  return bytes / (device.memory_gb_per_s * 1e3 * of_copy[lines.inner == 1 ? 0 : 1]) + device.launch_us +
         device.kernel_us;
}

// Sorting and the sums of one place after the other, measured on an H200 with 18 and 50 million indices.
double scatter_elements_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double bytes_per_index = 1900;  // that a copy moves meanwhile
  if (device.memory_gb_per_s <= 0) return 0;
  return bytes_per_index * static_cast<double>(call["indices"].elements()) / (device.memory_gb_per_s * 1e3) +
         device.launch_us + device.kernel_us;
}

int64_t scatter_nd_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return cuda::sort_workspace_bytes(element_count(llvm::ArrayRef<int64_t>(call["indices"].shape).drop_back()));
}

// A line is read once for each of the k.
bool accepts_top_k(const OpCall& call, llvm::ArrayRef<Type> results) {
  const int64_t length = call["x"].shape[call.get_int("axis")];
  return has_no_f8(call, results) && (call.get_int("k") <= 64 || length <= 4096);
}

constexpr CudaCandidate candidates[] = {
    {op_gather, "rows", accepts_everything},
    {op_gather_grad, "sorted", accepts_gather_grad, gather_grad_workspace},
    {op_gather_elements, "elements", ranks_fit},
    {op_gather_nd, "tuples", ranks_fit},
    {op_one_hot, "elements", accepts_everything},
    {.op = op_scatter_elements, .name = "lines", .accepts = accepts_lines, .predicted_us = lines_us},
    {.op = op_scatter_elements,
     .name = "sorted",
     .accepts = accepts_scatter,
     .workspace_bytes = scatter_elements_workspace,
     .predicted_us = scatter_elements_us},
    {op_scatter_nd, "sorted", accepts_scatter, scatter_nd_workspace},
    {op_cumsum, "scan", has_no_f8},
    {op_triangular, "elements", accepts_everything},
    {op_reverse_sequence, "elements", accepts_everything},
    {op_top_k, "repeated_search", accepts_top_k},
    {op_arg_max, "search", has_no_f8},
    {op_arg_min, "search", has_no_f8},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> index_candidates() { return candidates; }

}  // namespace plimsoll
