#include "kernels/cuda/loss/class_planes.h"
#include "kernels/cuda/loss/row_loss.cuh"

// Serves cross_entropy_with_grad. Scores [rows, classes] are read from memory once and the gradient is written once: a
// row is read again right after its sum is known, while it is in the caches. Where the loss is a mean, the labels'
// weights are added up first.

namespace plimsoll::cuda {
namespace {

// A block a row of consecutive classes; dlogits may be logits.
template <typename T>
__global__ void __launch_bounds__(1024)
    row_loss_grad_kernel(ClassScores scores, ClassLabels labels, RowResults results, T* dlogits, const T* logits,
                         const float* weight, const float* dloss, const float* dlse) {
  const int64_t row = blockIdx.x;
  const T* x = logits + row * scores.stored;
  const Label label(labels, row, scores.classes);
  const float label_logit = label.counts() ? widen(x[label.index]) : 0.0f;
  const RowTotals totals = totals_of_row(scores, labels, x);
  const float lse = totals.exponentials.log();
  if (threadIdx.x == 0) finish_row(scores, labels, results, row, label, lse, label_logit, totals.spread);
  const RowGradient gradient(scores, labels, label, row_gradient(labels, dloss, weight, row), dlse, row, lse,
                             totals.spread.weights);
  write_gradient_of_row(scores, labels, gradient, dlogits + row * scores.stored, x);
}

// One thread per row, its classes `inner` elements apart.
template <typename T>
__global__ void __launch_bounds__(256)
    strided_loss_grad_kernel(ClassScores scores, ClassLabels labels, RowResults results, T* dlogits, const T* logits,
                             const float* weight, const float* dloss, const float* dlse) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= scores.rows()) return;
  const int64_t start = strided_row(scores, row);
  const T* x = logits + start;
  const RowTotals totals = totals_of_strided_row(scores, labels, x);
  const Label label(labels, row, scores.classes);
  const float lse = totals.exponentials.log();
  const float label_logit = label.counts() ? widen(x[label.index * scores.inner]) : 0.0f;
  finish_row(scores, labels, results, row, label, lse, label_logit, totals.spread);
  const RowGradient gradient(scores, labels, label, row_gradient(labels, dloss, weight, row), dlse, row, lse,
                             totals.spread.weights);
  write_gradient_of_strided_row(scores, labels, gradient, dlogits + start, x);
}

}  // namespace

cudaError_t cross_entropy_with_grad(const LossWithGradient& call, cudaStream_t stream) {
  const ClassScores& scores = call.scores;
  return with_rows_of(call, stream, [&](const RowResults& results) {
    if (short_rows_of(scores).lanes > 0) return short_row_losses_with_grads(call, results, stream);
    const int64_t element_bytes = scores.type == Scalar::F32 ? 4 : 2;
    if (ClassPlanes(scores.classes, scores.inner, element_bytes).words > 0)
      return plane_losses_with_grads(call, results, stream);
    return with_f32_math(scores.type, [&]<typename T>(T*) {
      const T* x = static_cast<const T*>(call.logits);
      T* dx = static_cast<T*>(call.dlogits);
      const auto rows = static_cast<unsigned>(scores.rows());
      if (scores.inner == 1)
        row_loss_grad_kernel<<<rows, row_threads<T>(scores), 0, stream>>>(scores, call.labels, results, dx, x,
                                                                          call.weight, call.dloss, call.dlse);
      else
        strided_loss_grad_kernel<<<blocks_for(rows), 256, 0, stream>>>(scores, call.labels, results, dx, x, call.weight,
                                                                       call.dloss, call.dlse);
    });
  });
}

}  // namespace plimsoll::cuda
