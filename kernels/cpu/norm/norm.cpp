#include "kernels/cpu/norm/norm.h"

#include "kernels/cpu/common/parallel.h"
#include "kernels/cpu/common/row_math.h"
#include "kernels/cpu/common/vector_math.h"

#include <algorithm>

// Statistics are taken in two passes over a row that sits in cache: no cancellation. Gradients of scale and
// bias go down the columns in a second sweep with each thread owning columns, so they need no partial sums
// and no atomics.

namespace plimsoll::cpu {

namespace {

constexpr int64_t column_tile = 64;

// y = (x - center) * rstd, then scale and bias where present.
PLIMSOLL_VECTORISED void normalise(float* y, const float* x, float center, float rstd, const float* scale,
                                   const float* bias, int64_t n) {
  if (scale && bias) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - center) * rstd * scale[i] + bias[i];
  } else if (scale) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - center) * rstd * scale[i];
  } else if (bias) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - center) * rstd + bias[i];
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - center) * rstd;
  }
}

// The means of g = dy * scale and of g * xhat.
struct GradientMeans {
  float g, g_xhat;
};

PLIMSOLL_VECTORISED GradientMeans gradient_means(const float* x, const float* dy, float center, float rstd,
                                                 const float* scale, int64_t n) {
  constexpr int64_t block = 1024;
  double sum_g = 0, sum_g_xhat = 0;
  for (int64_t begin = 0; begin < n; begin += block) {
    const int64_t end = std::min(n, begin + block);
    float g_part = 0, g_xhat_part = 0;
    if (scale) {
#pragma omp simd reduction(+ : g_part, g_xhat_part)
      for (int64_t i = begin; i < end; ++i) {
        const float g = dy[i] * scale[i];
        g_part += g;
        g_xhat_part += g * ((x[i] - center) * rstd);
      }
    } else {
#pragma omp simd reduction(+ : g_part, g_xhat_part)
      for (int64_t i = begin; i < end; ++i) {
        g_part += dy[i];
        g_xhat_part += dy[i] * ((x[i] - center) * rstd);
      }
    }
    sum_g += g_part;
    sum_g_xhat += g_xhat_part;
  }
  return {static_cast<float>(sum_g / static_cast<double>(n)), static_cast<float>(sum_g_xhat / static_cast<double>(n))};
}

// dx = rstd * (g - mean_g - xhat * mean_g_xhat), plus addend where present
PLIMSOLL_VECTORISED void gradient_row(float* dx, const float* x, const float* dy, float center, float rstd,
                                      const float* scale, const float* addend, GradientMeans means, int64_t n) {
  const float factor = rstd * means.g_xhat;
  if (scale && addend) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) dx[i] = rstd * (dy[i] * scale[i] - means.g - (x[i] - center) * factor) + addend[i];
  } else if (scale) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) dx[i] = rstd * (dy[i] * scale[i] - means.g - (x[i] - center) * factor);
  } else if (addend) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) dx[i] = rstd * (dy[i] - means.g - (x[i] - center) * factor) + addend[i];
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) dx[i] = rstd * (dy[i] - means.g - (x[i] - center) * factor);
  }
}

PLIMSOLL_VECTORISED void add_parameter_row(float* dscale, float* dbias, const float* x, const float* dy, float center,
                                           float rstd, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    dscale[i] += dy[i] * ((x[i] - center) * rstd);
    dbias[i] += dy[i];
  }
}

// dscale and dbias of one tile of columns, rows added in groups as in a column reduction.
void parameter_tile(float* dscale, float* dbias, const float* x, const float* dy, const float* mean, const float* rstd,
                    int64_t rows, int64_t width, int64_t tile) {
  constexpr int64_t rows_per_group = 64;
  float scale_total[column_tile] = {}, bias_total[column_tile] = {};
  for (int64_t begin = 0; begin < rows; begin += rows_per_group) {
    float scale_part[column_tile] = {}, bias_part[column_tile] = {};
    for (int64_t r = begin; r < std::min(rows, begin + rows_per_group); ++r)
      add_parameter_row(scale_part, bias_part, x + r * width, dy + r * width, mean ? mean[r] : 0.0f, rstd[r], tile);
    add_to(scale_total, scale_part, tile);
    add_to(bias_total, bias_part, tile);
  }
  if (dscale) std::copy_n(scale_total, tile, dscale);
  if (dbias) std::copy_n(bias_total, tile, dbias);
}

void parameter_grads(float* dscale, float* dbias, const float* x, const float* dy, const float* mean, const float* rstd,
                     int64_t rows, int64_t width) {
  if (!dscale && !dbias) return;
  parallel_tasks((width + column_tile - 1) / column_tile, rows * width, [&](int64_t task) {
    const int64_t column = task * column_tile;
    parameter_tile(dscale ? dscale + column : nullptr, dbias ? dbias + column : nullptr, x + column, dy + column, mean,
                   rstd, rows, width, std::min(column_tile, width - column));
  });
}

}  // namespace

void row_norm(float* y, float* mean, float* rstd, const float* x, const float* scale, const float* bias, int64_t rows,
              int64_t width, float eps) {
  const auto count = static_cast<double>(width);
  parallel_rows(rows, 4 * width, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* row = x + r * width;
      const auto center = mean ? static_cast<float>(sum_of(row, width) / count) : 0.0f;
      const double squares = mean ? sum_of_squares_around(row, center, width) : sum_of_squares(row, width);
      if (mean) mean[r] = center;
      rstd[r] = static_cast<float>(1.0 / std::sqrt(squares / count + eps));
      normalise(y + r * width, row, center, rstd[r], scale, bias, width);
    }
  });
}

void row_norm_grad(float* dx, float* dscale, float* dbias, const float* x, const float* dy, const float* mean,
                   const float* rstd, const float* scale, const float* addend, int64_t rows, int64_t width) {
  parameter_grads(dscale, dbias, x, dy, mean, rstd, rows, width);
  parallel_rows(rows, 4 * width, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float *row = x + r * width, *dy_row = dy + r * width;
      const float center = mean ? mean[r] : 0.0f;
      GradientMeans means = gradient_means(row, dy_row, center, rstd[r], scale, width);
      if (!mean) means.g = 0;  // none was subtracted
      gradient_row(dx + r * width, row, dy_row, center, rstd[r], scale, addend ? addend + r * width : nullptr, means,
                   width);
    }
  });
}

}  // namespace plimsoll::cpu
