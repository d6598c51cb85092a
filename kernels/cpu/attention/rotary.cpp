#include "kernels/cpu/attention/rotary.h"

#include "kernels/cpu/common/parallel.h"
#include "kernels/cpu/common/vectorised.h"

#include <algorithm>

namespace plimsoll::cpu {

namespace {

// Pairs are (x[i * step], x[i * step + distance]).
PLIMSOLL_VECTORISED void rotate_head(float* y, const float* x, const float* cos, const float* sin, float sign,
                                     int64_t pairs, int64_t step, int64_t distance) {
#pragma omp simd
  for (int64_t i = 0; i < pairs; ++i) {
    const float first = x[i * step], second = x[i * step + distance];
    const float c = cos[i], s = sin[i] * sign;
    y[i * step] = first * c - second * s;
    y[i * step + distance] = second * c + first * s;
  }
}

}  // namespace

void rotary(const RotaryShape& shape, float* y, const float* x, const float* cos, const float* sin) {
  const float sign = shape.inverse ? -1.0f : 1.0f;
  const int64_t step = shape.interleaved ? 2 : 1, distance = shape.interleaved ? 1 : shape.pairs;
  const int64_t width = shape.heads * shape.head_size, rest = shape.head_size - 2 * shape.pairs;
  parallel_rows(shape.batch * shape.rows, 2 * width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t table = (shape.table_batch == 1 ? row % shape.rows : row) * shape.pairs;
      for (int64_t head = 0; head < shape.turned; ++head) {
        const int64_t at = row * width + head * shape.head_size;
        rotate_head(y + at, x + at, cos + table, sin + table, sign, shape.pairs, step, distance);
        if (rest > 0 && y != x) std::copy_n(x + at + 2 * shape.pairs, rest, y + at + 2 * shape.pairs);
      }
      const int64_t turned = shape.turned * shape.head_size;
      if (y != x) std::copy_n(x + row * width + turned, width - turned, y + row * width + turned);
    }
  });
}

}  // namespace plimsoll::cpu
