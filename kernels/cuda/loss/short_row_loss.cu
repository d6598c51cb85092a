#include "kernels/cuda/common/short_rows.cuh"
#include "kernels/cuda/loss/row_loss.cuh"

// Serves cross_entropy, its gradient, and both at once, of rows of up to 64 consecutive classes, or up to 32 whole
// accesses of them. Some lanes of a warp keep a row in registers: it is read once, and its gradient written once.

namespace plimsoll::cuda {
namespace {

// A row among those of a team: where its classes are, and what the losses share.
template <typename T, int n, int held, int at_once>
struct ShortRow {
  const TeamOfRow<n, held, at_once>& team;
  const ClassScores& scores;
  const ClassLabels& labels;
  const Packed<T, n> (&logits)[held];
  int r;

  __device__ int64_t row() const { return team.first + r * team.step; }
  // visit(class, logit): of this lane's.
  template <typename Visit>
  __device__ void for_classes(Visit visit) const {
#pragma unroll
    for (int k = 0; k < held; ++k)
      if (team.has(r, k))
#pragma unroll
        for (int i = 0; i < n; ++i)
          if (const int c = (team.lane + k * team.lanes) * n + i; c < scores.classes) visit(c, logits[k][i]);
  }
  __device__ float lse() const {
    RunningSum total = RunningSum::none();
    for_classes([&](int, float logit) { total.largest = fmaxf(total.largest, logit); });
    total.largest = team.reduce(total.largest, [](float a, float b) { return fmaxf(a, b); });
    const float finite = total.largest == -INFINITY ? 0.0f : total.largest;
    for_classes([&](int, float logit) { total.sum += exp2f((logit - finite) * log2_e); });
    total.sum = team.reduce(total.sum, Add());
    return total.log();
  }
  __device__ Spread spread() const {
    Spread spread{0, 0};
    if (labels.smoothing == 0.0f) return spread;
    for_classes([&](int c, float logit) { spread.add(labels, c, logit); });
    return {team.reduce(spread.weights, Add()), team.reduce(spread.logits, Add())};
  }
  __device__ float logit_at(const Label& label) const {
    float found = 0;
    for_classes([&](int c, float logit) {
      if (label.counts() && c == label.index) found = logit;
    });
    return team.reduce(found, Add());
  }
  __device__ void write(T* dlogits, const RowGradient& gradient) const {
#pragma unroll
    for (int k = 0; k < held; ++k) {
      if (!team.has(r, k)) continue;
      float results[n];
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const int c = (team.lane + k * team.lanes) * n + i;
        results[i] = c >= scores.classes    ? 0.0f
                     : gradient.is_constant ? gradient.constant
                                            : gradient.at(labels, c, logits[k][i]);
      }
      store_packed(dlogits + team.at(r, k), pack<T>(results));
    }
  }
};

struct GradientInputs {
  const float *weight, *dloss, *dlse;
};

template <bool has_gradient, int n, int held, int at_once, typename T>
__global__ void __launch_bounds__(short_row_threads)
    short_losses_kernel(RowsByLanes rows, ClassScores scores, ClassLabels labels, RowResults results, T* dlogits,
                        const T* logits, GradientInputs inputs) {
  const TeamOfRow<n, held, at_once> team(rows);
  Packed<T, n> kept[at_once][held];
  team.load(kept, logits);
#pragma unroll
  for (int r = 0; r < at_once; ++r) {
    const ShortRow<T, n, held, at_once> mine{team, scores, labels, kept[r], r};
    const bool is_row = mine.row() < rows.count;
    const int64_t row = is_row ? mine.row() : 0;
    const Label label(labels, row, scores.classes);
    const float lse = mine.lse(), label_logit = mine.logit_at(label);
    const Spread spread = mine.spread();
    if (!is_row) continue;
    if (team.lane == 0) finish_row(scores, labels, results, row, label, lse, label_logit, spread);
    if (has_gradient)
      mine.write(dlogits, RowGradient(scores, labels, label, row_gradient(labels, inputs.dloss, inputs.weight, row),
                                      inputs.dlse, row, lse, spread.weights));
  }
}

template <int n, int held, int at_once, typename T>
__global__ void __launch_bounds__(short_row_threads)
    short_grads_kernel(RowsByLanes rows, ClassScores scores, ClassLabels labels, T* dlogits, const T* logits,
                       const float* lse, GradientInputs inputs) {
  const TeamOfRow<n, held, at_once> team(rows);
  Packed<T, n> kept[at_once][held];
  team.load(kept, logits);
#pragma unroll
  for (int r = 0; r < at_once; ++r) {
    const ShortRow<T, n, held, at_once> mine{team, scores, labels, kept[r], r};
    const Spread spread = mine.spread();
    const int64_t row = mine.row();
    if (row >= rows.count) continue;
    mine.write(dlogits, RowGradient(scores, labels, Label(labels, row, scores.classes),
                                    row_gradient(labels, inputs.dloss, inputs.weight, row), inputs.dlse, row, lse[row],
                                    spread.weights));
  }
}

template <bool has_gradient>
cudaError_t launch_losses(const ClassScores& scores, const ClassLabels& labels, const RowResults& results,
                          void* dlogits, const void* logits, const GradientInputs& inputs, cudaStream_t stream) {
  const RowsByLanes rows = short_rows_of(scores);
  return with_f32_math(scores.type, [&]<typename T>(T*) {
    with_short_rows<T>(rows, [&](auto n, auto held, auto at_once, unsigned blocks) {
      short_losses_kernel<has_gradient, n, held, at_once><<<blocks, short_row_threads, 0, stream>>>(
          rows, scores, labels, results, static_cast<T*>(dlogits), static_cast<const T*>(logits), inputs);
    });
  });
}

}  // namespace

cudaError_t short_row_losses(const ClassScores& scores, const ClassLabels& labels, const RowResults& results,
                             const void* logits, cudaStream_t stream) {
  return launch_losses<false>(scores, labels, results, nullptr, logits, {}, stream);
}

cudaError_t short_row_losses_with_grads(const LossWithGradient& call, const RowResults& results, cudaStream_t stream) {
  return launch_losses<true>(call.scores, call.labels, results, call.dlogits, call.logits,
                             {call.weight, call.dloss, call.dlse}, stream);
}

cudaError_t short_row_grads(const ClassScores& scores, const ClassLabels& labels, void* dlogits, const void* logits,
                            const float* lse, const float* weight, const float* dloss, const float* dlse,
                            cudaStream_t stream) {
  const RowsByLanes rows = short_rows_of(scores);
  return with_f32_math(scores.type, [&]<typename T>(T*) {
    with_short_rows<T>(rows, [&](auto n, auto held, auto at_once, unsigned blocks) {
      short_grads_kernel<n, held, at_once><<<blocks, short_row_threads, 0, stream>>>(
          rows, scores, labels, static_cast<T*>(dlogits), static_cast<const T*>(logits), lse, {weight, dloss, dlse});
    });
  });
}

}  // namespace plimsoll::cuda
