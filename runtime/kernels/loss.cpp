#include "runtime/kernels/loss.h"

#include "kernels/cuda/common/partials.h"
#include "kernels/cuda/common/short_rows.h"
#include "kernels/cuda/loss/class_planes.h"
#include "kernels/cuda/loss/row_clusters.h"

namespace plimsoll {

LossReduction reduction_of(const OpCall& call) {
  const llvm::StringRef reduction = call.get_string("reduction");
  if (reduction == "none") return LossReduction::None;
  return reduction == "sum" ? LossReduction::Sum : LossReduction::Mean;
}

namespace {

// Every operand behind the labels is f32.
bool accepts_classes(const OpCall& call, DType scores) {
  return computes_in_f32(scores) && is_label(call["labels"].dtype) &&
         all_operands(
             call, [](const Type& type) { return type.dtype == DType::F32; }, call.index("labels") + 1);
}

bool accepts_loss(const OpCall& call, llvm::ArrayRef<Type>) { return accepts_classes(call, call.operand(0).dtype); }

bool accepts_nll_loss_grad(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_classes(call, results[0].dtype);
}

int64_t loss_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return cuda::loss_workspace(call["labels"].elements()) * static_cast<int64_t>(sizeof(float));
}

cuda::RowClusters clusters_of(const OpCall& call) {
  const Type& logits = call["logits"];
  return cuda::RowClusters(logits.shape[1] * dtype_bytes(logits.dtype));
}

// Rows of consecutive classes that clusters of blocks keep in shared memory.
bool accepts_clusters(const OpCall& call, llvm::ArrayRef<Type> results) {
  return accepts_loss(call, results) &&
         element_count(llvm::ArrayRef<int64_t>(call["logits"].shape).drop_front(2)) == 1 &&
         clusters_of(call).blocks > 0;
}

// Shares of the memory's speed on an H200. Four small launches add up weights and losses.
double clusters_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double share_of_blocks = 0.88, share_of_clusters = 0.83, small_launches = 4;
  return device.roofline_us(0, 2 * call["logits"].bytes(), std::nullopt) /
             (clusters_of(call).blocks == 1 ? share_of_blocks : share_of_clusters) +
         (small_launches + 1) * device.launch_us + device.kernel_us;
}

// Rows that some lanes of a warp take, fitted to 42 calls on an H200 (2026-11-30): what a lane does beside its few
// classes takes longer than these do. Of other rows the planner's roofline holds. `fixed_us` has the small launches.
struct OfShortRows {
  double fixed_us, lane_us;
};
double short_rows_us(const OpCall& call, const DeviceDescription& device, const OfShortRows& times) {
  constexpr double multiprocessors = 132;
  const Type& logits = call["logits"];
  const int64_t inner = element_count(llvm::ArrayRef<int64_t>(logits.shape).drop_front(2));
  if (device.memory_gb_per_s <= 0 || device.multiprocessors == 0 || inner != 1) return 0;
  const cuda::RowsByLanes rows(logits.shape[0], logits.shape[1], dtype_bytes(logits.dtype));
  const double lanes = static_cast<double>(rows.count * rows.lanes) * multiprocessors / device.multiprocessors;
  return rows.lanes == 0 ? 0 : times.fixed_us + times.lane_us * lanes;
}
double short_losses_us(const OpCall& call, const DeviceDescription& device) {
  return short_rows_us(call, device, {.fixed_us = 6, .lane_us = 14.5e-6});
}
double short_grads_us(const OpCall& call, const DeviceDescription& device) {
  return short_rows_us(call, device, {.fixed_us = 3.5, .lane_us = 14.5e-6});
}

// Planes of classes, fitted to 9 calls on an H200 (2026-11-30): a share of a copy's speed, smaller where a block has
// few neighbouring pixels or fills a multiprocessor, and what pixels have beside their classes.
double planes_us(const OpCall& call, const cuda::ClassPlanes& planes, const DeviceDescription& device) {
  constexpr double of_blocks = 0.88, of_narrow = 0.6, of_alone = 0.25, of_smooth = 0.45, pixel_us = 17e-6;
  constexpr double launches = 5;
  constexpr int64_t narrow_words = 32, half_a_multiprocessor = int64_t{110} << 10;
  const Type& logits = call["logits"];
  const double share = planes.shared_bytes(logits.shape[1]) > half_a_multiprocessor ? of_alone
                       : call.get_float("label_smoothing") > 0                      ? of_smooth
                       : planes.words <= narrow_words                               ? of_narrow
                                                                                    : of_blocks;
  return device.roofline_us(0, 2 * logits.bytes(), std::nullopt) / share +
         pixel_us * static_cast<double>(call["labels"].elements()) + launches * device.launch_us + device.kernel_us;
}

double losses_with_grads_us(const OpCall& call, const DeviceDescription& device) {
  const Type& logits = call["logits"];
  const int64_t inner = element_count(llvm::ArrayRef<int64_t>(logits.shape).drop_front(2));
  const cuda::ClassPlanes planes(logits.shape[1], inner, dtype_bytes(logits.dtype));
  if (planes.words > 0 && device.memory_gb_per_s > 0) return planes_us(call, planes, device);
  return short_rows_us(call, device, {.fixed_us = 10, .lane_us = 22.5e-6});
}

constexpr CudaCandidate loss_candidate(const OpDef& op, CudaCandidate::WorkspaceFn workspace,
                                       CudaCandidate::TimeFn time) {
  return {.op = op, .name = "rows", .accepts = accepts_loss, .workspace_bytes = workspace, .predicted_us = time};
}

constexpr CudaCandidate loss_table[] = {
    loss_candidate(op_cross_entropy, loss_workspace, short_losses_us),
    loss_candidate(op_cross_entropy_grad, nullptr, short_grads_us),
    {.op = op_cross_entropy_with_grad,
     .name = "clusters",
     .accepts = accepts_clusters,
     .workspace_bytes = loss_workspace,
     .predicted_us = clusters_us,
     .capability = 90},
    loss_candidate(op_cross_entropy_with_grad, loss_workspace, losses_with_grads_us),
    {op_nll_loss, "rows", accepts_loss, loss_workspace},
    {op_nll_loss_grad, "elements", accepts_nll_loss_grad},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> loss_candidates() { return loss_table; }

}  // namespace plimsoll
