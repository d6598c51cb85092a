#pragma once

// What cross_entropy, its gradient, and both at once do with a row. With W the weight of a row's label and s the
// smoothing over C classes, a row's loss is
//   (1 - s) * W * (lse - x[label]) + s / C * sum_c weight[c] * (lse - x[c]).

#include "kernels/cuda/common/short_rows.h"
#include "kernels/cuda/loss/labels.cuh"
#include "kernels/cuda/reduce/running_sum.cuh"

namespace plimsoll::cuda {

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

__device__ inline void finish_row(const ClassScores& scores, const ClassLabels& labels, const RowResults& results,
                                  int64_t row, const Label& label, float lse, float label_logit, const Spread& spread) {
  const float weight = label.counts() ? class_weight(labels, label.index) : 0.0f;
  float loss = label.counts() ? (1.0f - labels.smoothing) * weight * (lse - label_logit) : 0.0f;
  if (label.counts() && labels.smoothing > 0.0f)
    loss += labels.smoothing / static_cast<float>(scores.classes) * (lse * spread.weights - spread.logits);
  if (!label.ignored && !label.valid) loss = NAN;
  results.lse[row] = lse;
  results.losses[row] = loss;
  results.weights[row] = weight;
}

struct RowTotals {
  RunningSum exponentials = RunningSum::none();
  Spread spread{0, 0};  // 0 without smoothing
};

// Of a row of consecutive classes, for every thread of its block.
template <typename T>
__device__ RowTotals totals_of_row(const ClassScores& scores, const ClassLabels& labels, const T* x) {
  const int t = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  RowTotals totals;
  for_row(x, scores.classes, t, threads,
          [&](int64_t, const auto& values) { totals.exponentials = add_elements(totals.exponentials, values); });
  totals.exponentials = block_reduce(totals.exponentials, MergeSums(), RunningSum::none());
  if (labels.smoothing > 0.0f) {
    for (int64_t c = t; c < scores.classes; c += threads) totals.spread.add(labels, c, widen(x[c]));
    totals.spread = block_reduce(totals.spread, Add(), Spread{0, 0});
  }
  return totals;
}

// Of a row whose classes are `inner` elements apart, for the one thread that reads it.
template <typename T>
__device__ RowTotals totals_of_strided_row(const ClassScores& scores, const ClassLabels& labels, const T* x) {
  RowTotals totals;
  for (int64_t c = 0; c < scores.classes; ++c) {
    const Vector<T, 1> logit{{x[c * scores.inner]}};
    totals.exponentials = add_elements(totals.exponentials, logit);
    if (labels.smoothing > 0.0f) totals.spread.add(labels, c, widen(logit.at[0]));
  }
  return totals;
}

// Where such a row begins.
__device__ inline int64_t strided_row(const ClassScores& scores, int64_t row) {
  return row / scores.inner * scores.classes * scores.inner + row % scores.inner;
}

// dlogits = of_softmax * exp(x - lse) - dloss * expected, the expected share of each class being its smoothed target
// and of_softmax the row's dloss times the sum of these shares, plus the gradient of its lse.
struct RowGradient {
  float dloss, of_softmax, target, share, lse;
  int64_t label;  // -1: none counts
  bool is_constant;
  float constant;  // 0, or NaN where the label names no class

  RowGradient() = default;
  // Of an ignored row the loss has no gradient, but its lse may. spread: the summed weight of all classes, where the
  // labels are smoothed.
  __device__ RowGradient(const ClassScores& scores, const ClassLabels& labels, const Label& label, float row_dloss,
                         const float* dlse, int64_t row, float lse, float spread)
      : dloss(label.counts() ? row_dloss : 0.0f),
        target(label.counts() ? (1.0f - labels.smoothing) * class_weight(labels, label.index) : 0.0f),
        share(labels.smoothing / static_cast<float>(scores.classes)),
        lse(lse),
        label(label.counts() ? label.index : -1),
        is_constant(!label.counts() && !(label.ignored && dlse)),
        constant(label.ignored ? 0.0f : NAN) {
    of_softmax = dloss * (target + share * spread) + (dlse ? dlse[row] : 0.0f);
  }

  __device__ float at(const ClassLabels& labels, int64_t c, float logit) const {
    float expected = c == label ? target : 0.0f;
    if (share > 0.0f) expected += share * class_weight(labels, c);
    return of_softmax * exp2f((logit - lse) * log2_e) - dloss * expected;
  }
};

// Of a row of consecutive classes, by the threads of its block; dx may be x.
template <typename T>
__device__ void write_gradient_of_row(const ClassScores& scores, const ClassLabels& labels, const RowGradient& gradient,
                                      T* dx, const T* x) {
  const int t = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (int64_t c = scores.classes + t; c < scores.stored; c += threads) dx[c] = narrow<T>(0.0f);
  if (gradient.is_constant) {
    for (int64_t c = t; c < scores.classes; c += threads) dx[c] = narrow<T>(gradient.constant);
    return;
  }
  for_row(x, scores.classes, t, threads, [&](int64_t at, auto values) {
    constexpr int n = sizeof(values) / sizeof(T);
#pragma unroll
    for (int i = 0; i < n; ++i) values.at[i] = narrow<T>(gradient.at(labels, at + i, widen(values.at[i])));
    store_vector(dx + at, values);
  });
}

// Of a row whose classes are `inner` elements apart, by one thread.
template <typename T>
__device__ void write_gradient_of_strided_row(const ClassScores& scores, const ClassLabels& labels,
                                              const RowGradient& gradient, T* dx, const T* x) {
  for (int64_t c = 0; c < scores.classes; ++c) {
    const int64_t at = c * scores.inner;
    dx[at] = narrow<T>(gradient.is_constant ? gradient.constant : gradient.at(labels, c, widen(x[at])));
  }
}

// Adds up the labels' weights where the rows need the sum, has launch_rows(results) work on the rows, and adds up the
// losses.
template <typename LaunchRows>
cudaError_t with_rows_of(const LossWithGradient& call, cudaStream_t stream, LaunchRows launch_rows) {
  const int64_t rows = call.scores.rows();
  const LossReduction reduction = call.labels.reduction;
  float* parts = call.workspace + 2 * rows;
  const RowResults results{reduction == LossReduction::None ? call.loss : call.workspace, call.workspace + rows,
                           call.lse};
  if (reduction == LossReduction::Mean)
    if (cudaError_t error = sum_label_weights(call.labels, call.scores.classes, rows, call.weight, parts, stream);
        error != cudaSuccess)
      return error;
  if (rows > 0)
    if (cudaError_t error = launch_rows(results); error != cudaSuccess) return error;
  return reduce_losses(reduction, rows, call.loss, call.weight, results.losses, results.weights, parts, stream);
}

template <typename T>
int row_threads(const ClassScores& scores) {
  const int64_t accesses = scores.classes / vector_length<T>;
  return accesses <= 64 ? 64 : threads_for_row(accesses);
}

// Rows of consecutive classes, as lanes take them where they are short (short_row_loss.cu).
inline RowsByLanes short_rows_of(const ClassScores& scores) {
  return {scores.rows(), scores.inner == 1 ? scores.stored : 0, scores.type == Scalar::F32 ? 4 : 2};
}
[[nodiscard]] cudaError_t short_row_losses(const ClassScores& scores, const ClassLabels& labels,
                                           const RowResults& results, const void* logits, cudaStream_t stream);
// dlogits may be logits.
[[nodiscard]] cudaError_t short_row_grads(const ClassScores& scores, const ClassLabels& labels, void* dlogits,
                                          const void* logits, const float* lse, const float* weight, const float* dloss,
                                          const float* dlse, cudaStream_t stream);
[[nodiscard]] cudaError_t short_row_losses_with_grads(const LossWithGradient& call, const RowResults& results,
                                                      cudaStream_t stream);
// Of classes that are planes, where ClassPlanes has words for them (class_planes_loss.cu).
[[nodiscard]] cudaError_t plane_losses_with_grads(const LossWithGradient& call, const RowResults& results,
                                                  cudaStream_t stream);

}  // namespace plimsoll::cuda
