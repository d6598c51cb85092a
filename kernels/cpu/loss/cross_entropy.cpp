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

// Rows of a task: one of consecutive classes, or neighbours whose classes lie between each other's.
struct Rows {
  int64_t first, count, offset;  // offset: of the first one's class 0
};

int64_t rows_per_task(const AxisShape& shape) { return std::min(shape.inner, lse_tile); }

// body(rows) for the rows of every task; `work` is the cost of one score in element operations.
template <typename Body>
void parallel_row_tasks(const AxisShape& shape, int64_t work, Body&& body) {
  const int64_t tile = rows_per_task(shape), tiles = (shape.inner + tile - 1) / tile;
  parallel_tasks(shape.outer * tiles, work * shape.rows() * shape.length, [&](int64_t task) {
    const int64_t column = task % tiles * tile, first = task / tiles * shape.inner + column;
    body(Rows{first, std::min(tile, shape.inner - column), offset_of(shape, first)});
  });
}

void lse_of(const AxisShape& shape, const Rows& rows, const float* logits, float* lse) {
  if (shape.inner == 1)
    lse[rows.first] = log_sum_exp(logits + rows.offset, shape.length);
  else
    log_sum_exp_columns(lse + rows.first, logits + rows.offset, shape.length, shape.inner, rows.count);
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

// Of the labels that count. *bad_row: a row whose label names no class, or -1.
template <typename Label>
double sum_label_weights(const AxisShape& shape, const CrossEntropyOptions& options, const Label* labels,
                         int64_t* bad_row) {
  *bad_row = -1;
  double total = 0;
  for (int64_t r = 0; r < shape.rows(); ++r) {
    if (options.ignores && labels[r] == options.ignore_index) continue;
    if (labels[r] < 0 || labels[r] >= shape.length) {
      *bad_row = r;
      return 0;
    }
    total += weight_of(options, labels[r]);
  }
  return total;
}

// The label counts or is ignored.
double loss_of(const AxisShape& shape, const CrossEntropyOptions& options, const float* x, int64_t label, float lse) {
  if (options.ignores && label == options.ignore_index) return 0;
  const double weight = weight_of(options, label);
  double loss = (1.0 - options.smoothing) * weight * (static_cast<double>(lse) - x[label * shape.inner]);
  if (options.smoothing > 0)
    loss += options.smoothing / static_cast<double>(shape.length) * smoothed_loss(shape, options, x, lse);
  return loss;
}

// What gradients of all rows share.
struct Smoothed {
  float share, spread;
  Smoothed(const AxisShape& shape, const CrossEntropyOptions& options)
      : share(options.smoothing / static_cast<float>(shape.length)),
        spread(share > 0 ? share * static_cast<float>(weight_sum(shape, options)) : 0.0f) {}
};

template <typename Label>
void gradient_of(const AxisShape& shape, const CrossEntropyOptions& options, const Rows& rows, const Smoothed& smoothed,
                 float* dlogits, const float* logits, const Label* labels, const float* lse,
                 const LossGradient& gradient) {
  RowTarget targets[lse_tile];
  float factors[lse_tile];
  for (int64_t i = 0; i < rows.count; ++i) {
    const int64_t row = rows.first + i;
    targets[i] = target_of(options, labels[row], gradient.dloss[row * gradient.dloss_step], gradient.divisor);
    factors[i] = targets[i].label < 0 ? 0.0f : targets[i].upstream * (targets[i].target + smoothed.spread);
    if (gradient.dlse) factors[i] += gradient.dlse[row];
  }
  float* dx = dlogits + rows.offset;
  const float* x = logits + rows.offset;
  if (shape.inner == 1 && targets[0].label < 0 && !gradient.dlse)
    std::fill_n(dx, shape.length, 0.0f);
  else if (shape.inner == 1)
    softmax_times(dx, x, lse + rows.first, factors, 0, shape.length);
  else
    for (int64_t c = 0; c < shape.length; ++c)
      softmax_times(dx + c * shape.inner, x + c * shape.inner, lse + rows.first, factors, 1, rows.count);
  for (int64_t i = 0; i < rows.count; ++i) subtract_expected(shape, options, targets[i], smoothed.share, dx + i);
}

}  // namespace

template <typename Label>
double cross_entropy_rows(const AxisShape& shape, const CrossEntropyOptions& options, const float* logits,
                          const Label* labels, double* losses, float* lse, int64_t* bad_row) {
  const double weight = sum_label_weights(shape, options, labels, bad_row);
  if (*bad_row >= 0) return 0;
  parallel_row_tasks(shape, 4, [&](const Rows& rows) { lse_of(shape, rows, logits, lse); });
  for (int64_t r = 0; r < shape.rows(); ++r)
    losses[r] = loss_of(shape, options, logits + offset_of(shape, r), labels[r], lse[r]);
  return weight;
}

template <typename Label>
void cross_entropy_grad(const AxisShape& shape, const CrossEntropyOptions& options, float* dlogits, const float* logits,
                        const Label* labels, const float* lse, const LossGradient& gradient) {
  const Smoothed smoothed(shape, options);
  parallel_row_tasks(shape, 2, [&](const Rows& rows) {
    gradient_of(shape, options, rows, smoothed, dlogits, logits, labels, lse, gradient);
  });
}

template <typename Label>
double cross_entropy_with_grad(const AxisShape& shape, const CrossEntropyOptions& options, float* dlogits,
                               const float* logits, const Label* labels, double* losses, float* lse,
                               LossGradient gradient, bool is_mean, int64_t* bad_row) {
  const double weight = sum_label_weights(shape, options, labels, bad_row);
  if (*bad_row >= 0) return 0;
  if (is_mean) gradient.divisor = static_cast<float>(weight);
  const Smoothed smoothed(shape, options);
  parallel_row_tasks(shape, 6, [&](const Rows& rows) {
    lse_of(shape, rows, logits, lse);
    for (int64_t i = 0; i < rows.count; ++i) {
      const int64_t row = rows.first + i;
      losses[row] = loss_of(shape, options, logits + rows.offset + i, labels[row], lse[row]);
    }
    gradient_of(shape, options, rows, smoothed, dlogits, logits, labels, lse, gradient);
  });
  return weight;
}

#define INSTANTIATE(Label)                                                                                           \
  template double cross_entropy_rows(const AxisShape&, const CrossEntropyOptions&, const float*, const Label*,       \
                                     double*, float*, int64_t*);                                                     \
  template void cross_entropy_grad(const AxisShape&, const CrossEntropyOptions&, float*, const float*, const Label*, \
                                   const float*, const LossGradient&);                                               \
  template double cross_entropy_with_grad(const AxisShape&, const CrossEntropyOptions&, float*, const float*,        \
                                          const Label*, double*, float*, LossGradient, bool, int64_t*);
INSTANTIATE(int32_t)
INSTANTIATE(int64_t)

}  // namespace plimsoll::cpu
