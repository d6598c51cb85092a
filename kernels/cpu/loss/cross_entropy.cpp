#include "kernels/cpu/loss/cross_entropy.h"

#include "kernels/cpu/common/parallel.h"
#include "kernels/cpu/common/row_math.h"
#include "kernels/cpu/common/vector_math.h"
#include "kernels/cpu/reduce/softmax.h"

#include <algorithm>

// With W the weight of a row's label, s the smoothing and C classes, a row's loss is
//   (1 - s) W (lse - x[label]) + s/C sum_c w[c] (lse - x[c]),
// so its gradient is (t + s/C sum w) softmax(x) - s/C w, less t = (1 - s) W at the label.

namespace plimsoll::cpu {

namespace {

float weight_of(const CrossEntropyOptions& options, int64_t c) {
  return options.class_weights ? options.class_weights[c] : 1.0f;
}

double weight_sum(const AxisShape& shape, const CrossEntropyOptions& options) {
  return options.class_weights ? sum_of(options.class_weights, shape.length) : static_cast<double>(shape.length);
}

int64_t offset_of(const AxisShape& shape, int64_t row) {
  return row / shape.inner * shape.length * shape.inner + row % shape.inner;
}

void row_lse(const AxisShape& shape, const float* logits, float* lse) {
  if (shape.inner == 1) {
    parallel_rows(shape.outer, 4 * shape.length, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) lse[r] = log_sum_exp(logits + r * shape.length, shape.length);
    });
    return;
  }
  const int64_t tiles = (shape.inner + lse_tile - 1) / lse_tile;
  parallel_tasks(shape.outer * tiles, 4 * shape.rows() * shape.length, [&](int64_t task) {
    const int64_t n = task / tiles, column = task % tiles * lse_tile;
    log_sum_exp_columns(lse + n * shape.inner + column, logits + n * shape.length * shape.inner + column, shape.length,
                        shape.inner, std::min(lse_tile, shape.inner - column));
  });
}

// sum_c w[c] (lse - x[c])
double smoothed_loss(const AxisShape& shape, const CrossEntropyOptions& options, const float* x, double lse) {
  double total = 0;
  for (int64_t c = 0; c < shape.length; ++c) total += weight_of(options, c) * (lse - x[c * shape.inner]);
  return total;
}

PLIMSOLL_VECTORISED void softmax_times(float* y, const float* x, const float* lse, const float* factor, int64_t step,
                                       int64_t n) {
  if (step == 0) {
    const float row_lse = *lse, row_factor = *factor;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = vector_exp(x[i] - row_lse) * row_factor;
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = factor[i] == 0.0f ? 0.0f : vector_exp(x[i] - lse[i]) * factor[i];
  }
}

// The contribution of one row: its upstream gradient and the label's target mass; both 0 when it is ignored.
struct RowTarget {
  float upstream = 0, target = 0;
  int64_t label = -1;
};

template <typename Label>
RowTarget target_of(const CrossEntropyOptions& options, Label label, float dloss, double divisor) {
  if (options.ignores && label == options.ignore_index) return {};
  return {static_cast<float>(dloss / divisor), (1 - options.smoothing) * weight_of(options, label), label};
}

void subtract_expected(const AxisShape& shape, const CrossEntropyOptions& options, const RowTarget& row, float share,
                       float* dlogits) {
  if (row.label < 0) return;
  if (share > 0)
    for (int64_t c = 0; c < shape.length; ++c) dlogits[c * shape.inner] -= row.upstream * share * weight_of(options, c);
  dlogits[row.label * shape.inner] -= row.upstream * row.target;
}

}  // namespace

template <typename Label>
double cross_entropy_rows(const AxisShape& shape, const CrossEntropyOptions& options, const float* logits,
                          const Label* labels, double* losses, float* lse, int64_t* bad_row) {
  *bad_row = -1;
  row_lse(shape, logits, lse);
  double total_weight = 0;
  for (int64_t r = 0; r < shape.rows(); ++r) {
    losses[r] = 0;
    if (options.ignores && labels[r] == options.ignore_index) continue;
    if (labels[r] < 0 || labels[r] >= shape.length) {
      *bad_row = r;
      return 0;
    }
    const float* x = logits + offset_of(shape, r);
    const double weight = weight_of(options, labels[r]);
    total_weight += weight;
    losses[r] = (1.0 - options.smoothing) * weight * (static_cast<double>(lse[r]) - x[labels[r] * shape.inner]);
    if (options.smoothing > 0)
      losses[r] += options.smoothing / static_cast<double>(shape.length) * smoothed_loss(shape, options, x, lse[r]);
  }
  return total_weight;
}

template <typename Label>
void cross_entropy_grad(const AxisShape& shape, const CrossEntropyOptions& options, float* dlogits, const float* logits,
                        const Label* labels, const float* lse, const float* dloss, int64_t dloss_step, double divisor,
                        const float* dlse) {
  const float share = options.smoothing / static_cast<float>(shape.length);
  const float spread = share > 0 ? share * static_cast<float>(weight_sum(shape, options)) : 0.0f;
  const int64_t tile = std::min(shape.inner, lse_tile), tiles = (shape.inner + tile - 1) / tile;
  parallel_tasks(shape.outer * tiles, 2 * shape.rows() * shape.length, [&](int64_t task) {
    const int64_t first = task / tiles * shape.inner + task % tiles * tile;
    const int64_t width = std::min(tile, shape.inner - task % tiles * tile);
    RowTarget rows[lse_tile];
    float factors[lse_tile];
    for (int64_t i = 0; i < width; ++i) {
      rows[i] = target_of(options, labels[first + i], dloss[(first + i) * dloss_step], divisor);
      factors[i] = rows[i].label < 0 ? 0.0f : rows[i].upstream * (rows[i].target + spread);
      if (dlse) factors[i] += dlse[first + i];
    }
    const int64_t at = offset_of(shape, first);
    if (shape.inner == 1 && rows[0].label < 0 && !dlse)
      std::fill_n(dlogits + at, shape.length, 0.0f);
    else if (shape.inner == 1)
      softmax_times(dlogits + at, logits + at, lse + first, factors, 0, shape.length);
    else
      for (int64_t c = 0; c < shape.length; ++c)
        softmax_times(dlogits + at + c * shape.inner, logits + at + c * shape.inner, lse + first, factors, 1, width);
    for (int64_t i = 0; i < width; ++i) subtract_expected(shape, options, rows[i], share, dlogits + at + i);
  });
}

#define INSTANTIATE(Label)                                                                                           \
  template double cross_entropy_rows(const AxisShape&, const CrossEntropyOptions&, const float*, const Label*,       \
                                     double*, float*, int64_t*);                                                     \
  template void cross_entropy_grad(const AxisShape&, const CrossEntropyOptions&, float*, const float*, const Label*, \
                                   const float*, const float*, int64_t, double, const float*);
INSTANTIATE(int32_t)
INSTANTIATE(int64_t)

}  // namespace plimsoll::cpu
