#include "kernels/cuda/loss/labels.cuh"

// Serves nll_loss and nll_loss_grad. Forward reads one score for each row, backward writes all of dx once. Losses by
// the label alone, and the sum over rows that all losses share: blocks add the rows of their own in a fixed order, then
// one block adds the blocks.

namespace plimsoll::cuda {
namespace {

struct LossSums {
  float loss, weight;
  __device__ LossSums operator+(const LossSums& other) const { return {loss + other.loss, weight + other.weight}; }
};

__global__ void __launch_bounds__(block_threads)
    partial_losses_kernel(LossSums* parts, const float* losses, const float* weights, int64_t rows) {
  LossSums sums{0, 0};
  const int64_t step = int64_t{gridDim.x} * block_threads;
#pragma unroll 4
  for (int64_t row = int64_t{blockIdx.x} * block_threads + threadIdx.x; row < rows; row += step)
    sums = sums + LossSums{losses[row], weights[row]};
  sums = block_reduce(sums, Add(), LossSums{0, 0});
  if (threadIdx.x == 0) parts[blockIdx.x] = sums;
}

// In the same order.
__global__ void __launch_bounds__(block_threads)
    partial_weights_kernel(LossSums* parts, ClassLabels labels, int64_t classes, int64_t rows) {
  LossSums sums{0, 0};
  const int64_t step = int64_t{gridDim.x} * block_threads;
#pragma unroll 4
  for (int64_t row = int64_t{blockIdx.x} * block_threads + threadIdx.x; row < rows; row += step) {
    const Label label(labels, row, classes);
    if (label.counts()) sums.weight += class_weight(labels, label.index);
  }
  sums = block_reduce(sums, Add(), LossSums{0, 0});
  if (threadIdx.x == 0) parts[blockIdx.x] = sums;
}

__global__ void __launch_bounds__(block_threads)
    add_losses_kernel(LossReduction reduction, float* loss, float* weight, const LossSums* parts, int count) {
  const auto t = static_cast<int>(threadIdx.x);
  LossSums total{0, 0};
  for (int part = t; part < count; part += block_threads) total = total + parts[part];
  total = block_reduce(total, Add(), LossSums{0, 0});
  if (t != 0) return;
  *weight = total.weight;
  if (reduction == LossReduction::Mean) *loss = total.loss / total.weight;
  if (reduction == LossReduction::Sum) *loss = total.loss;
}

// Element of row `row` and class c.
__device__ int64_t place(const ClassScores& scores, int64_t row, int64_t c) {
  return (row / scores.inner * scores.classes + c) * scores.inner + row % scores.inner;
}

template <typename T>
__global__ void __launch_bounds__(block_threads)
    nll_kernel(ClassScores scores, ClassLabels labels, float* losses, float* weights, const T* log_probs) {
  const int64_t row = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (row >= scores.rows()) return;
  const Label label(labels, row, scores.classes);
  float loss = label.ignored ? 0.0f : NAN, weight = 0.0f;
  if (label.counts()) {
    weight = class_weight(labels, label.index);
    loss = -weight * widen(log_probs[place(scores, row, label.index)]);
  }
  losses[row] = loss;
  weights[row] = weight;
}

template <typename T>
__global__ void __launch_bounds__(block_threads)
    nll_grad_kernel(ClassScores scores, ClassLabels labels, T* dx, const float* weight, const float* dloss) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i >= scores.rows() * scores.classes) return;
  const int64_t c = i / scores.inner % scores.classes;
  const int64_t row = i / (scores.inner * scores.classes) * scores.inner + i % scores.inner;
  const Label label(labels, row, scores.classes);
  float value = label.ignored || label.valid ? 0.0f : NAN;
  if (label.counts() && label.index == c) value = -class_weight(labels, c) * row_gradient(labels, dloss, weight, row);
  dx[i] = narrow<T>(value);
}

}  // namespace

cudaError_t reduce_losses(LossReduction reduction, int64_t rows, float* loss, float* weight, const float* losses,
                          const float* weights, float* parts, cudaStream_t stream) {
  auto* sums = reinterpret_cast<LossSums*>(parts);
  const auto count = static_cast<int>(loss_parts(rows));
  partial_losses_kernel<<<static_cast<unsigned>(count), block_threads, 0, stream>>>(sums, losses, weights, rows);
  add_losses_kernel<<<1, block_threads, 0, stream>>>(reduction, loss, weight, sums, count);
  return cudaGetLastError();
}

cudaError_t sum_label_weights(const ClassLabels& labels, int64_t classes, int64_t rows, float* weight, float* parts,
                              cudaStream_t stream) {
  auto* sums = reinterpret_cast<LossSums*>(parts);
  const auto count = static_cast<int>(loss_parts(rows));
  partial_weights_kernel<<<static_cast<unsigned>(count), block_threads, 0, stream>>>(sums, labels, classes, rows);
  add_losses_kernel<<<1, block_threads, 0, stream>>>(LossReduction::None, nullptr, weight, sums, count);
  return cudaGetLastError();
}

cudaError_t nll_loss(const ClassScores& scores, const ClassLabels& labels, float* loss, float* weight,
                     const void* log_probs, float* workspace, cudaStream_t stream) {
  const int64_t rows = scores.rows();
  float* losses = labels.reduction == LossReduction::None ? loss : workspace;
  float* weights = workspace + rows;
  if (rows > 0) {
    const cudaError_t error = with_f32_math(scores.type, [&]<typename T>(T*) {
      nll_kernel<<<blocks_for(rows), block_threads, 0, stream>>>(scores, labels, losses, weights,
                                                                 static_cast<const T*>(log_probs));
    });
    if (error != cudaSuccess) return error;
  }
  return reduce_losses(labels.reduction, rows, loss, weight, losses, weights, workspace + 2 * rows, stream);
}

cudaError_t nll_loss_grad(const ClassScores& scores, const ClassLabels& labels, void* dlog_probs, const float* weight,
                          const float* dloss, cudaStream_t stream) {
  const int64_t elements = scores.rows() * scores.classes;
  if (elements == 0) return cudaSuccess;
  return with_f32_math(scores.type, [&]<typename T>(T*) {
    nll_grad_kernel<<<blocks_for(elements), block_threads, 0, stream>>>(scores, labels, static_cast<T*>(dlog_probs),
                                                                        weight, dloss);
  });
}

}  // namespace plimsoll::cuda
