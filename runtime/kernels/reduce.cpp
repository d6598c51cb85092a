#include "runtime/kernels/reduce.h"

#include "kernels/cuda/common/partials.h"
#include "kernels/cuda/common/short_rows.h"
#include "kernels/cuda/reduce/held_rows.h"

namespace plimsoll {

std::optional<cuda::AlternatingShape> reduction_shape(const OpCall& call) {
  cuda::AlternatingShape shape;
  const llvm::ArrayRef<int64_t> sizes = call["x"].shape, axes = call.get_ints("axes");
  const bool all = !call.attrs.has("axes");
  for (size_t d = 0; d < sizes.size(); ++d)
    if (!shape.add(sizes[d], all || llvm::is_contained(axes, static_cast<int64_t>(d)))) return std::nullopt;
  return shape;
}

cuda::AlternatingShape row_sums(const Type& dy) {
  cuda::AlternatingShape shape;
  shape.add(dy.elements() / dy.shape.back(), true);
  shape.add(dy.shape.back(), false);
  return shape;
}

namespace {

// Blocks are numbered in 31 bits.
bool accepts_reduction(const OpCall& call, llvm::ArrayRef<Type> results) {
  const DType x = call["x"].dtype;
  const std::optional<cuda::AlternatingShape> shape = reduction_shape(call);
  if (!shape || !computes_in_f32(x) || !computes_in_f32(results[0].dtype)) return false;
  const cuda::ReductionPlan plan(*shape, dtype_bytes(x));
  return plan.parts() * plan.outputs() <= INT32_MAX;
}

// Of nothing there is no maximum.
bool accepts_integers(const OpCall& call, llvm::ArrayRef<Type> results) {
  const DType x = call["x"].dtype;
  return (x == DType::I64 || x == DType::I32) && results[0].dtype == x && call["x"].elements() > 0 &&
         call["x"].elements() <= INT32_MAX / cuda::vector_bytes && reduction_shape(call).has_value();
}

int64_t reduction_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  const cuda::ReductionPlan plan(*reduction_shape(call), dtype_bytes(call["x"].dtype));
  return plan.workspace() * static_cast<int64_t>(sizeof(float));
}

// Sums over a few rows, fitted to 8 calls on an H200 (2026-11-30): narrow accesses are slower than a copy.
double few_rows_us(const OpCall& call, const cuda::ReductionPlan& plan, const DeviceDescription& device) {
  constexpr double of_narrow = 1.45;
  const int64_t element_bytes = dtype_bytes(call["x"].dtype);
  const double us = device.roofline_us(0, call["x"].bytes() + plan.outputs() * element_bytes, std::nullopt);
  return us * (plan.columns_at_once(element_bytes) * element_bytes < 8 ? of_narrow : 1) + device.beside_us(us);
}

// Sums of columns and of slabs, fitted to 12 calls on an H200 (2026-11-30): a share of a copy's speed by the bytes of
// an access, and a second launch that combines parts.
double columns_us(const OpCall& call, const cuda::ReductionPlan& plan, const DeviceDescription& device) {
  constexpr double of_words = 0.93, of_halves = 0.84, of_quarters = 0.55, of_single = 0.36, combining_us = 3;
  const int64_t element_bytes = dtype_bytes(call["x"].dtype),
                bytes = plan.columns_at_once(element_bytes) * element_bytes;
  const double share = bytes >= 16 ? of_words : bytes >= 8 ? of_halves : bytes >= 4 ? of_quarters : of_single;
  return device.roofline_us(0, call["x"].bytes(), std::nullopt) / share + device.launch_us + device.kernel_us +
         (plan.parts() > 1 ? combining_us : 0);
}

// Elements anywhere, of which the place of each is computed: the lanes of a warp, or the threads of a block, take
// turns.
double scattered_us(const cuda::ReductionPlan& plan, const DeviceDescription& device) {
  constexpr double turn_us = 10e-6, multiprocessors = 132;
  const double turns = static_cast<double>(plan.outputs() * plan.splits * round_up(plan.length / plan.splits, 32));
  return turn_us * turns * multiprocessors / std::max(device.multiprocessors, 1) + device.launch_us + device.kernel_us;
}

// Rows that some lanes of a warp take, fitted to 14 calls on an H200 (2026-11-30): lanes without an element, and
// elements that come one by one, cost time. Of other rows the planner's roofline holds.
double reduction_us(const OpCall& call, const DeviceDescription& device) {
  using Form = cuda::ReductionPlan::Form;
  constexpr double of_copy = 1.2, of_single = 2.35;
  const int64_t element_bytes = dtype_bytes(call["x"].dtype);
  const cuda::ReductionPlan plan(*reduction_shape(call), element_bytes);
  if (device.memory_gb_per_s <= 0 || call["x"].elements() == 0) return 0;
  if (plan.form == Form::FewRows) return few_rows_us(call, plan, device);
  if (plan.form == Form::Columns || plan.form == Form::Slabs) return columns_us(call, plan, device);
  if (plan.form == Form::Any) return scattered_us(plan, device);
  const cuda::RowsByLanes rows(plan.parts() * plan.outer, plan.length, element_bytes);
  if (plan.splits > 1 || rows.lanes == 0) return 0;
  const double us = device.roofline_us(0, call["x"].bytes() + rows.count * element_bytes, std::nullopt);
  const double held_per_access = static_cast<double>(rows.lanes * rows.held) / rows.accesses;
  return us * of_copy * held_per_access * (rows.access * element_bytes < 4 ? of_single : 1) + device.beside_us(us);
}

// How much longer than a copy of what it moves a softmax takes, fitted to calls on an H200 (2026-11-30). Lanes with
// short rows read whole accesses as quickly as a copy; rows that a warp or a block holds wait for their own sums, the
// shorter the longer, and elements that come one by one cost instructions.
double softmax_times(const AxisShape& shape, int64_t element_bytes, bool is_backward) {
  const bool is_short = element_bytes == 2;
  const cuda::RowsByLanes lanes(shape.outer, shape.inner == 1 ? shape.length : 0, element_bytes);
  if (lanes.lanes > 0) {
    const int64_t access_bytes = lanes.access * element_bytes;
    if (access_bytes >= 8) return 1;
    return access_bytes < 4 ? (is_backward ? 2.05 : 3.1) : (is_backward ? 1.25 : 1.55);
  }
  const cuda::HeldRows rows(shape);
  if (rows.size == 0 && cuda::ShortColumns::takes(shape)) {
    const bool is_single = is_short && shape.inner % 4 != 0;
    return is_backward ? (is_single ? 1.35 : 1) : is_single ? 1.6 : 1.25;
  }
  if (rows.size == 0) return shape.inner > 1 ? 3 : is_backward ? 1.05 : 1.9;
  if (rows.access == 1) return is_short ? (is_backward ? 1.8 : rows.is_of_block() ? 2.8 : 2.1) : 1.3;
  if (rows.held == cuda::HeldRows::few_held) return is_short && !is_backward ? 1.65 : 1.1;
  return is_backward ? 1.05 : 1.2;
}

double softmax_us(const OpCall& call, const DeviceDescription& device) {
  if (device.memory_gb_per_s <= 0) return 0;
  const Type& x = call.operand(0);
  const bool is_backward = call.count() > 1;
  const double slower = softmax_times(softmax_axis(call), dtype_bytes(x.dtype), is_backward);
  const int64_t tensors = is_backward ? 3 : 2;
  const double us = device.roofline_us(0, tensors * x.bytes(), std::nullopt);
  return slower * us + (slower > 1 ? device.launch_us : device.beside_us(us));
}

constexpr CudaCandidate reduction_candidate(const OpDef& op) {
  return {.op = op,
          .name = "two_stages",
          .accepts = accepts_reduction,
          .workspace_bytes = reduction_workspace,
          .predicted_us = reduction_us};
}
constexpr CudaCandidate softmax_candidate(const OpDef& op) {
  return {.op = op, .name = "rows", .accepts = one_float_type, .predicted_us = softmax_us};
}

constexpr CudaCandidate integers_candidate(const OpDef& op) {
  return {.op = op, .name = "integers", .accepts = accepts_integers};
}

bool accepts_squares(const OpCall& call, llvm::ArrayRef<Type> results) {
  const DType x = call.operand(0).dtype;
  return computes_in_f32(x) && results[0].dtype == DType::F32 &&
         all_operands(call, [&](const Type& type) { return type.dtype == x; });
}

int64_t squares_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  int64_t total = 0, parts = 0;
  for (size_t i = 0; i < call.count(); ++i) total += call.operand(i).elements();
  const int64_t block = cuda::squares_block(total);
  for (size_t i = 0; i < call.count(); ++i) parts += cuda::squares_parts(call.operand(i).elements(), block);
  return parts * static_cast<int64_t>(sizeof(float));
}

constexpr CudaCandidate reduce_table[] = {
    reduction_candidate(op_reduce_sum),     reduction_candidate(op_reduce_mean),
    reduction_candidate(op_reduce_max),     reduction_candidate(op_reduce_min),
    reduction_candidate(op_reduce_prod),    {op_sum_squares, "two_stages", accepts_squares, squares_workspace},
    integers_candidate(op_reduce_sum),      integers_candidate(op_reduce_max),
    integers_candidate(op_reduce_min),      softmax_candidate(op_softmax),
    softmax_candidate(op_softmax_grad),     softmax_candidate(op_log_softmax),
    softmax_candidate(op_log_softmax_grad), {op_hardmax, "rows", one_float_type},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> reduce_candidates() { return reduce_table; }

}  // namespace plimsoll
