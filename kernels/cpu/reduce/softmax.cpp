#include "kernels/cpu/reduce/softmax.h"

#include "kernels/cpu/common/parallel.h"
#include "kernels/cpu/common/row_math.h"
#include "kernels/cpu/common/vector_math.h"

#include <algorithm>

// Rows (inner = 1) go through once for the maximum, once for the sum, once to write. Columns do the same
// for a tile of neighbours at a time, so that every access is contiguous.

namespace plimsoll::cpu {

namespace {

PLIMSOLL_VECTORISED void subtract(float* y, const float* x, float shift, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] - shift;
}

void softmax_row(SoftmaxKind kind, float* y, const float* x, int64_t n) {
  const float largest = max_of(x, n);
  const double total = sum_of_exp(x, largest, n);
  if (kind == SoftmaxKind::Log)
    subtract(y, x, largest + static_cast<float>(std::log(total)), n);
  else
    exp_scaled(y, x, largest, static_cast<float>(1.0 / total), n);
}

PLIMSOLL_VECTORISED void softmax_grad_row(float* dx, const float* y, const float* dy, float inner_product, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dx[i] = y[i] * (dy[i] - inner_product);
}

PLIMSOLL_VECTORISED void log_softmax_grad_row(float* dx, const float* y, const float* dy, float total, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] - vector_exp(y[i]) * total;
}

PLIMSOLL_VECTORISED void exp_sums(float* sums, const float* x, const float* shifts, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) sums[i] += vector_exp(x[i] - shifts[i]);
}

PLIMSOLL_VECTORISED void softmax_from_lse(SoftmaxKind kind, float* y, const float* x, const float* lse, int64_t n) {
  if (kind == SoftmaxKind::Log) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] - lse[i];
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = vector_exp(x[i] - lse[i]);
  }
}

PLIMSOLL_VECTORISED void log_of_sums(float* lse, const float* largest, const float* sums, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) lse[i] = largest[i] == -infinity ? -infinity : largest[i] + vector_log(sums[i]);
}

// totals[i] += y * dy (plain) or dy (log)
PLIMSOLL_VECTORISED void grad_totals(SoftmaxKind kind, float* totals, const float* y, const float* dy, int64_t n) {
  if (kind == SoftmaxKind::Log) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) totals[i] += dy[i];
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) totals[i] += y[i] * dy[i];
  }
}

PLIMSOLL_VECTORISED void grad_from_totals(SoftmaxKind kind, float* dx, const float* y, const float* dy,
                                          const float* totals, int64_t n) {
  if (kind == SoftmaxKind::Log) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] - vector_exp(y[i]) * totals[i];
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) dx[i] = y[i] * (dy[i] - totals[i]);
  }
}

// body(offset, width) for tiles of columns of every outer index.
template <typename Body>
void for_column_tiles(const AxisShape& shape, Body&& body) {
  const int64_t tiles = (shape.inner + lse_tile - 1) / lse_tile;
  parallel_tasks(shape.outer * tiles, shape.outer * shape.length * shape.inner * 4, [&](int64_t task) {
    const int64_t column = task % tiles * lse_tile;
    body(task / tiles * shape.length * shape.inner + column, std::min(lse_tile, shape.inner - column));
  });
}

}  // namespace

float log_sum_exp(const float* x, int64_t n) {
  const float largest = max_of(x, n);
  if (largest == -infinity) return -infinity;
  return largest + static_cast<float>(std::log(sum_of_exp(x, largest, n)));
}

void log_sum_exp_columns(float* lse, const float* x, int64_t length, int64_t stride, int64_t width) {
  float largest[lse_tile], sums[lse_tile];
  std::fill_n(largest, width, -infinity);
  std::fill_n(sums, width, 0.0f);
  for (int64_t k = 0; k < length; ++k) max_to(largest, x + k * stride, width);
  for (int64_t k = 0; k < length; ++k) exp_sums(sums, x + k * stride, largest, width);
  log_of_sums(lse, largest, sums, width);
}

void softmax(SoftmaxKind kind, const AxisShape& shape, float* y, const float* x) {
  if (shape.inner == 1) {
    parallel_rows(shape.outer, 4 * shape.length, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        softmax_row(kind, y + row * shape.length, x + row * shape.length, shape.length);
    });
    return;
  }
  for_column_tiles(shape, [&](int64_t offset, int64_t width) {
    float lse[lse_tile];
    log_sum_exp_columns(lse, x + offset, shape.length, shape.inner, width);
    for (int64_t k = 0; k < shape.length; ++k)
      softmax_from_lse(kind, y + offset + k * shape.inner, x + offset + k * shape.inner, lse, width);
  });
}

void softmax_grad(SoftmaxKind kind, const AxisShape& shape, float* dx, const float* y, const float* dy) {
  const int64_t length = shape.length;
  if (shape.inner == 1) {
    parallel_rows(shape.outer, 3 * length, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin * length; at < end * length; at += length) {
        if (kind == SoftmaxKind::Log)
          log_softmax_grad_row(dx + at, y + at, dy + at, static_cast<float>(sum_of(dy + at, length)), length);
        else
          softmax_grad_row(dx + at, y + at, dy + at, static_cast<float>(dot(y + at, dy + at, length)), length);
      }
    });
    return;
  }
  for_column_tiles(shape, [&](int64_t offset, int64_t width) {
    float totals[lse_tile] = {};
    for (int64_t k = 0; k < length; ++k)
      grad_totals(kind, totals, y + offset + k * shape.inner, dy + offset + k * shape.inner, width);
    for (int64_t k = 0; k < length; ++k) {
      const int64_t at = offset + k * shape.inner;
      grad_from_totals(kind, dx + at, y + at, dy + at, totals, width);
    }
  });
}

}  // namespace plimsoll::cpu
