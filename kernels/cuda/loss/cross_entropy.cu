#include "kernels/cuda/loss/labels.cuh"
#include "kernels/cuda/reduce/running_sum.cuh"

// Serves cross_entropy and cross_entropy_grad. Forward reads the scores [rows, classes] once, backward reads and writes
// them once. With W the weight of a row's label and s the smoothing over C classes, a row's loss is
//   (1 - s) * W * (lse - x[label]) + s / C * sum_c weight[c] * (lse - x[c]).
// Rows of consecutive classes are read once, by a block that keeps a running sum; with other dimensions inside,
// neighbouring threads take neighbouring rows.

namespace plimsoll::cuda {
namespace {

// Weighted sums over the classes that label smoothing needs: of 1 and of the logits.
struct Spread {
  float weights, logits;
  __device__ Spread operator+(const Spread& other) const { return {weights + other.weights, logits + other.logits}; }
  __device__ void add(const ClassLabels& labels, int64_t c, float logit) {
    weights += class_weight(labels, c);
    logits += class_weight(labels, c) * logit;
  }
};

struct RowResults {
  float *losses, *weights, *lse;
};

__device__ void finish_row(const ClassScores& scores, const ClassLabels& labels, const RowResults& results, int64_t row,
                           const Label& label, float lse, float label_logit, const Spread& spread) {
  const float weight = label.counts() ? class_weight(labels, label.index) : 0.0f;
  float loss = label.counts() ? (1.0f - labels.smoothing) * weight * (lse - label_logit) : 0.0f;
  if (label.counts() && labels.smoothing > 0.0f)
    loss += labels.smoothing / static_cast<float>(scores.classes) * (lse * spread.weights - spread.logits);
  if (!label.ignored && !label.valid) loss = NAN;
  results.lse[row] = lse;
  results.losses[row] = loss;
  results.weights[row] = weight;
}

// A block a row of consecutive classes.
template <typename T>
__global__ void __launch_bounds__(1024)
    row_loss_kernel(ClassScores scores, ClassLabels labels, RowResults results, const T* logits) {
  const int64_t row = blockIdx.x;
  const int t = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const T* x = logits + row * scores.stored;
  RunningSum total = RunningSum::none();
  for_row(x, scores.classes, t, threads, [&](int64_t, const auto& values) { total = add_elements(total, values); });
  total = block_reduce(total, MergeSums(), RunningSum::none());
  Spread spread{0, 0};
  if (labels.smoothing > 0.0f) {
    for (int64_t c = t; c < scores.classes; c += threads) spread.add(labels, c, widen(x[c]));
    spread = block_reduce(spread, Add(), Spread{0, 0});
  }
  if (t != 0) return;
  const Label label(labels, row, scores.classes);
  finish_row(scores, labels, results, row, label, total.log(), label.counts() ? widen(x[label.index]) : 0.0f, spread);
}

// One thread per row, its classes `inner` elements apart.
template <typename T>
__global__ void __launch_bounds__(256)
    strided_loss_kernel(ClassScores scores, ClassLabels labels, RowResults results, const T* logits) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= scores.rows()) return;
  const T* x = logits + row / scores.inner * scores.classes * scores.inner + row % scores.inner;
  RunningSum total = RunningSum::none();
  Spread spread{0, 0};
  for (int64_t c = 0; c < scores.classes; ++c) {
    const Vector<T, 1> logit{{x[c * scores.inner]}};
    total = add_elements(total, logit);
    if (labels.smoothing > 0.0f) spread.add(labels, c, widen(logit.at[0]));
  }
  const Label label(labels, row, scores.classes);
  const float label_logit = label.counts() ? widen(x[label.index * scores.inner]) : 0.0f;
  finish_row(scores, labels, results, row, label, total.log(), label_logit, spread);
}

// dlogits = of_softmax * exp(x - lse) - dloss * expected, the expected share of each class being its smoothed target
// and of_softmax the row's dloss times the sum of these shares, plus the gradient of its lse.
struct RowGradient {
  float dloss, of_softmax, target, share, lse;

  // Of an ignored row the loss has no gradient. spread: the summed weight of all classes, where the labels are
  // smoothed.
  __device__ RowGradient(const ClassScores& scores, const ClassLabels& labels, const Label& label, float row_dloss,
                         float row_dlse, float lse, float spread)
      : dloss(label.counts() ? row_dloss : 0.0f),
        target(label.counts() ? (1.0f - labels.smoothing) * class_weight(labels, label.index) : 0.0f),
        share(labels.smoothing / static_cast<float>(scores.classes)),
        lse(lse) {
    of_softmax = dloss * (target + share * spread) + row_dlse;
  }

  __device__ float at(const ClassLabels& labels, int64_t c, int64_t label, float logit) const {
    float expected = c == label ? target : 0.0f;
    if (share > 0.0f) expected += share * class_weight(labels, c);
    return of_softmax * exp2f((logit - lse) * log2_e) - dloss * expected;
  }
};

__device__ inline float row_dlse(const float* dlse, int64_t row) { return dlse ? dlse[row] : 0.0f; }

// Does the row's gradient depend on its logits? Else it is 0, or NaN where the label names no class.
__device__ inline bool has_gradient(const Label& label, const float* dlse) {
  return label.counts() || (label.ignored && dlse);
}

// A block a row of consecutive classes; dlogits may be logits.
template <typename T>
__global__ void __launch_bounds__(1024)
    row_grad_kernel(ClassScores scores, ClassLabels labels, T* dlogits, const T* logits, const float* lse,
                    const float* weight, const float* dloss, const float* dlse) {
  const int64_t row = blockIdx.x;
  const int t = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const T* x = logits + row * scores.stored;
  T* dx = dlogits + row * scores.stored;
  for (int64_t c = scores.classes + t; c < scores.stored; c += threads) dx[c] = narrow<T>(0.0f);
  const Label label(labels, row, scores.classes);
  if (!has_gradient(label, dlse)) {
    const T fill = narrow<T>(label.ignored ? 0.0f : NAN);
    for (int64_t c = t; c < scores.classes; c += threads) dx[c] = fill;
    return;
  }
  float spread = 0.0f;
  if (labels.smoothing > 0.0f) {
    for (int64_t c = t; c < scores.classes; c += threads) spread += class_weight(labels, c);
    spread = block_reduce(spread, Add(), 0.0f);
  }
  const RowGradient gradient(scores, labels, label, row_gradient(labels, dloss, weight, row), row_dlse(dlse, row),
                             lse[row], spread);
  const int64_t own = label.counts() ? label.index : -1;
  for_row(x, scores.classes, t, threads, [&](int64_t at, auto values) {
    constexpr int n = sizeof(values) / sizeof(T);
#pragma unroll
    for (int i = 0; i < n; ++i) values.at[i] = narrow<T>(gradient.at(labels, at + i, own, widen(values.at[i])));
    store_vector(dx + at, values);
  });
}

// One thread per row, its classes `inner` elements apart.
template <typename T>
__global__ void __launch_bounds__(256)
    strided_grad_kernel(ClassScores scores, ClassLabels labels, T* dlogits, const T* logits, const float* lse,
                        const float* weight, const float* dloss, const float* dlse) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= scores.rows()) return;
  const int64_t start = row / scores.inner * scores.classes * scores.inner + row % scores.inner;
  const Label label(labels, row, scores.classes);
  if (!has_gradient(label, dlse)) {
    for (int64_t c = 0; c < scores.classes; ++c)
      dlogits[start + c * scores.inner] = narrow<T>(label.ignored ? 0.0f : NAN);
    return;
  }
  float spread = 0.0f;
  if (labels.smoothing > 0.0f)
    for (int64_t c = 0; c < scores.classes; ++c) spread += class_weight(labels, c);
  const RowGradient gradient(scores, labels, label, row_gradient(labels, dloss, weight, row), row_dlse(dlse, row),
                             lse[row], spread);
  const int64_t own = label.counts() ? label.index : -1;
  for (int64_t c = 0; c < scores.classes; ++c) {
    const int64_t at = start + c * scores.inner;
    dlogits[at] = narrow<T>(gradient.at(labels, c, own, widen(logits[at])));
  }
}

template <typename T>
int row_threads(const ClassScores& scores) {
  const int64_t accesses = scores.classes / vector_length<T>;
  return accesses <= 64 ? 64 : threads_for_row(accesses);
}

}  // namespace

cudaError_t cross_entropy(const ClassScores& scores, const ClassLabels& labels, float* loss, float* lse, float* weight,
                          const void* logits, float* workspace, cudaStream_t stream) {
  const int64_t rows = scores.rows();
  const bool keeps_losses = labels.reduction == LossReduction::None;
  const RowResults results{keeps_losses ? loss : workspace, workspace + rows, lse};
  if (rows > 0) {
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
