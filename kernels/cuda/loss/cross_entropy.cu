#include "kernels/cuda/loss/row_loss.cuh"

// Serves cross_entropy and cross_entropy_grad. Forward reads the scores [rows, classes] once, backward reads and writes
// them once. Rows of consecutive classes are read once, by a block that keeps a running sum, and short ones by some
// lanes (short_row_loss.cu); with other dimensions inside, neighbouring threads take neighbouring rows.

namespace plimsoll::cuda {
namespace {

// A block a row of consecutive classes.
template <typename T>
__global__ void __launch_bounds__(1024)
    row_loss_kernel(ClassScores scores, ClassLabels labels, RowResults results, const T* logits) {
  const int64_t row = blockIdx.x;
  const T* x = logits + row * scores.stored;
  const RowTotals totals = totals_of_row(scores, labels, x);
  if (threadIdx.x != 0) return;
  const Label label(labels, row, scores.classes);
  finish_row(scores, labels, results, row, label, totals.exponentials.log(),
             label.counts() ? widen(x[label.index]) : 0.0f, totals.spread);
}

// One thread per row, its classes `inner` elements apart.
template <typename T>
__global__ void __launch_bounds__(256)
    strided_loss_kernel(ClassScores scores, ClassLabels labels, RowResults results, const T* logits) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= scores.rows()) return;
  const T* x = logits + strided_row(scores, row);
  const RowTotals totals = totals_of_strided_row(scores, labels, x);
  const Label label(labels, row, scores.classes);
  const float label_logit = label.counts() ? widen(x[label.index * scores.inner]) : 0.0f;
  finish_row(scores, labels, results, row, label, totals.exponentials.log(), label_logit, totals.spread);
}

// A block a row of consecutive classes; dlogits may be logits.
template <typename T>
__global__ void __launch_bounds__(1024)
    row_grad_kernel(ClassScores scores, ClassLabels labels, T* dlogits, const T* logits, const float* lse,
                    const float* weight, const float* dloss, const float* dlse) {
  const int64_t row = blockIdx.x;
  float spread = 0.0f;
  if (labels.smoothing > 0.0f) {
    for (int64_t c = threadIdx.x; c < scores.classes; c += blockDim.x) spread += class_weight(labels, c);
    spread = block_reduce(spread, Add(), 0.0f);
  }
  const RowGradient gradient(scores, labels, Label(labels, row, scores.classes),
                             row_gradient(labels, dloss, weight, row), dlse, row, lse[row], spread);
  write_gradient_of_row(scores, labels, gradient, dlogits + row * scores.stored, logits + row * scores.stored);
}

// One thread per row, its classes `inner` elements apart.
template <typename T>
__global__ void __launch_bounds__(256)
    strided_grad_kernel(ClassScores scores, ClassLabels labels, T* dlogits, const T* logits, const float* lse,
                        const float* weight, const float* dloss, const float* dlse) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= scores.rows()) return;
  float spread = 0.0f;
  if (labels.smoothing > 0.0f)
    for (int64_t c = 0; c < scores.classes; ++c) spread += class_weight(labels, c);
  const RowGradient gradient(scores, labels, Label(labels, row, scores.classes),
                             row_gradient(labels, dloss, weight, row), dlse, row, lse[row], spread);
  const int64_t start = strided_row(scores, row);
  write_gradient_of_strided_row(scores, labels, gradient, dlogits + start, logits + start);
}

}  // namespace

cudaError_t cross_entropy(const ClassScores& scores, const ClassLabels& labels, float* loss, float* lse, float* weight,
                          const void* logits, float* workspace, cudaStream_t stream) {
  const int64_t rows = scores.rows();
  const bool keeps_losses = labels.reduction == LossReduction::None;
  const RowResults results{keeps_losses ? loss : workspace, workspace + rows, lse};
  if (short_rows_of(scores).lanes > 0 && rows > 0) {
    if (cudaError_t error = short_row_losses(scores, labels, results, logits, stream); error != cudaSuccess)
      return error;
  } else if (rows > 0) {
    const cudaError_t error = with_f32_math(scores.type, [&]<typename T>(T*) {
      const T* x = static_cast<const T*>(logits);
      if (scores.inner == 1)
        row_loss_kernel<<<static_cast<unsigned>(rows), row_threads<T>(scores), 0, stream>>>(scores, labels, results, x);
      else
        strided_loss_kernel<<<blocks_for(rows), 256, 0, stream>>>(scores, labels, results, x);
    });
    if (error != cudaSuccess) return error;
  }
  return reduce_losses(labels.reduction, rows, loss, weight, results.losses, results.weights, workspace + 2 * rows,
                       stream);
}

cudaError_t cross_entropy_grad(const ClassScores& scores, const ClassLabels& labels, void* dlogits, const void* logits,
                               const float* lse, const float* weight, const float* dloss, const float* dlse,
                               cudaStream_t stream) {
  const int64_t rows = scores.rows();
  if (rows == 0) return cudaSuccess;
  if (short_rows_of(scores).lanes > 0)
    return short_row_grads(scores, labels, dlogits, logits, lse, weight, dloss, dlse, stream);
  return with_f32_math(scores.type, [&]<typename T>(T*) {
    const T* x = static_cast<const T*>(logits);
    T* dx = static_cast<T*>(dlogits);
    if (scores.inner == 1)
      row_grad_kernel<<<static_cast<unsigned>(rows), row_threads<T>(scores), 0, stream>>>(scores, labels, dx, x, lse,
                                                                                          weight, dloss, dlse);
    else
      strided_grad_kernel<<<blocks_for(rows), 256, 0, stream>>>(scores, labels, dx, x, lse, weight, dloss, dlse);
  });
}

}  // namespace plimsoll::cuda
