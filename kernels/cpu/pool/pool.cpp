#include "kernels/cpu/pool/pool.h"

#include "kernels/cpu/common/parallel.h"
#include "kernels/cpu/common/vector_math.h"

#include <algorithm>

// A row of results is made at once: for every kernel element, one pass along the row over the results whose
// window has it inside the input. Long rows go in tiles, whose state fits on the stack.

namespace plimsoll::cpu {

namespace {

constexpr int64_t row_tile = 512;

int64_t plane_size(const int64_t* dims) { return dims[0] * dims[1] * dims[2]; }

// Results [begin, end) of a dimension whose window has kernel element k inside the input.
struct Range {
  int64_t begin, end;
};

Range inside(const PoolShape& s, int d, int64_t k) {
  const int64_t shift = s.pads_begin[d] - k * s.dilations[d], stride = s.strides[d];
  const int64_t begin = shift > 0 ? (shift + stride - 1) / stride : 0;
  const int64_t last = s.in[d] - 1 + shift;
  return {std::min(begin, s.out[d]), last < 0 ? 0 : std::min(last / stride + 1, s.out[d])};
}

int64_t input_of(const PoolShape& s, int d, int64_t out, int64_t k) {
  return out * s.strides[d] - s.pads_begin[d] + k * s.dilations[d];
}

// How many kernel elements of a window count for the average along one dimension.
int64_t counted(const PoolShape& s, int d, int64_t out) {
  int64_t count = 0;
  for (int64_t k = 0; k < s.kernel[d]; ++k) {
    const int64_t at = input_of(s, d, out, k);
    const bool in_input = at >= 0 && at < s.in[d];
    count += in_input || (s.count_include_pad && at >= -s.pads_begin[d] && at < s.in[d] + s.pads_end[d]);
  }
  return count;
}

// A tile of one row of results: columns [first, first + width) of row (depth, row) in the output plane.
struct RowTile {
  int64_t depth, row, first, width;
  int64_t output_at(const PoolShape& s) const { return (depth * s.out[1] + row) * s.out[2] + first; }
};

template <typename Body>
void for_each_tile(const PoolShape& s, Body&& body) {
  for (int64_t depth = 0; depth < s.out[0]; ++depth)
    for (int64_t row = 0; row < s.out[1]; ++row)
      for (int64_t first = 0; first < s.out[2]; first += row_tile)
        body(RowTile{depth, row, first, std::min(row_tile, s.out[2] - first)});
}

// body(begin, count, input offset in the plane, number of the kernel element) in kernel order: results
// begin .. begin + count of the tile read the input from there on in steps of the stride.
template <typename Body>
void for_each_tap(const PoolShape& s, const RowTile& tile, Body&& body) {
  for (int64_t kd = 0; kd < s.kernel[0]; ++kd) {
    const int64_t depth = input_of(s, 0, tile.depth, kd);
    if (depth < 0 || depth >= s.in[0]) continue;
    for (int64_t kh = 0; kh < s.kernel[1]; ++kh) {
      const int64_t row = input_of(s, 1, tile.row, kh);
      if (row < 0 || row >= s.in[1]) continue;
      for (int64_t kw = 0; kw < s.kernel[2]; ++kw) {
        const Range range = inside(s, 2, kw);
        const int64_t begin = std::max(range.begin, tile.first), end = std::min(range.end, tile.first + tile.width);
        if (begin >= end) continue;
        body(begin - tile.first, end - begin, (depth * s.in[1] + row) * s.in[2] + input_of(s, 2, begin, kw),
             (kd * s.kernel[1] + kh) * s.kernel[2] + kw);
      }
    }
  }
}

// The name of x[i * step] is first + i * name_step.
PLIMSOLL_VECTORISED void take_larger(float* best, int32_t* name, const float* x, int32_t step, int32_t first,
                                     int32_t name_step, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float value = x[i * step];
    const bool better = (name[i] < 0) | (value > best[i]) | ((value != value) & (best[i] == best[i]));
    best[i] = better ? value : best[i];
    name[i] = better ? first + static_cast<int32_t>(i) * name_step : name[i];
  }
}

PLIMSOLL_VECTORISED void add_strided(float* sum, const float* x, int64_t step, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) sum[i] += x[i * step];
}

// The largest element of every window of the tile, and where it stands in the plane or which kernel element met it; -1
// where a window meets no input.
struct Maxima {
  enum class Name : uint8_t { Index, Tap };
  float value[row_tile];
  int32_t name[row_tile];

  void find(const PoolShape& s, const RowTile& tile, const float* plane, Name by) {
    const auto step = static_cast<int32_t>(s.strides[2]);
    std::fill_n(value, tile.width, -infinity);
    std::fill_n(name, tile.width, -1);
    for_each_tap(s, tile, [&](int64_t begin, int64_t count, int64_t from, int64_t tap) {
      take_larger(value + begin, name + begin, plane + from, step, static_cast<int32_t>(by == Name::Index ? from : tap),
                  by == Name::Index ? step : 0, count);
    });
  }
};

// 1 over the number of elements each result of the tile averages.
void inverse_counts(const PoolShape& s, const RowTile& tile, float* inverse) {
  const int64_t outer = counted(s, 0, tile.depth) * counted(s, 1, tile.row);
  for (int64_t i = 0; i < tile.width; ++i)
    inverse[i] = 1.0f / static_cast<float>(outer * counted(s, 2, tile.first + i));
}

int64_t work_of(const PoolShape& s) { return s.planes * plane_size(s.out) * plane_size(s.kernel); }

}  // namespace

void max_pool(const PoolShape& shape, float* y, int64_t* indices, const float* x) {
  const int64_t x_size = plane_size(shape.in), y_size = plane_size(shape.out);
  parallel_tasks(shape.planes, work_of(shape), [&](int64_t plane) {
    Maxima maxima;
    for_each_tile(shape, [&](const RowTile& tile) {
      maxima.find(shape, tile, x + plane * x_size, Maxima::Name::Index);
      const int64_t at = plane * y_size + tile.output_at(shape);
      std::copy_n(maxima.value, tile.width, y + at);
      for (int64_t i = 0; indices && i < tile.width; ++i)
        indices[at + i] = maxima.name[i] < 0 ? -1 : plane * x_size + maxima.name[i];
    });
  });
}

void max_pool_with_choices(const PoolShape& shape, float* y, uint8_t* choices, const float* x) {
  const int64_t x_size = plane_size(shape.in), y_size = plane_size(shape.out);
  parallel_tasks(shape.planes, work_of(shape), [&](int64_t plane) {
    Maxima maxima;
    for_each_tile(shape, [&](const RowTile& tile) {
      maxima.find(shape, tile, x + plane * x_size, Maxima::Name::Tap);
      const int64_t at = plane * y_size + tile.output_at(shape);
      std::copy_n(maxima.value, tile.width, y + at);
      for (int64_t i = 0; i < tile.width; ++i) choices[at + i] = static_cast<uint8_t>(maxima.name[i]);
    });
  });
}

void max_pool_grad(const PoolShape& shape, float* dx, const float* x, const float* dy) {
  const int64_t x_size = plane_size(shape.in), y_size = plane_size(shape.out);
  parallel_tasks(shape.planes, work_of(shape), [&](int64_t plane) {
    Maxima maxima;
    float* to = dx + plane * x_size;
    std::fill_n(to, x_size, 0.0f);
    for_each_tile(shape, [&](const RowTile& tile) {
      maxima.find(shape, tile, x + plane * x_size, Maxima::Name::Index);
      const float* from = dy + plane * y_size + tile.output_at(shape);
      for (int64_t i = 0; i < tile.width; ++i)
        if (maxima.name[i] >= 0) to[maxima.name[i]] += from[i];
    });
  });
}

void max_pool_grad_of_choices(const PoolShape& shape, float* dx, const uint8_t* choices, const float* dy) {
  const int64_t x_size = plane_size(shape.in), y_size = plane_size(shape.out);
  parallel_tasks(shape.planes, work_of(shape), [&](int64_t plane) {
    float* to = dx + plane * x_size;
    std::fill_n(to, x_size, 0.0f);
    for_each_tile(shape, [&](const RowTile& tile) {
      const int64_t at = plane * y_size + tile.output_at(shape);
      for_each_tap(shape, tile, [&](int64_t begin, int64_t count, int64_t first, int64_t tap) {
        for (int64_t i = 0; i < count; ++i)
          if (choices[at + begin + i] == tap) to[first + i * shape.strides[2]] += dy[at + begin + i];
      });
    });
  });
}

void average_pool(const PoolShape& shape, float* y, const float* x) {
  const int64_t x_size = plane_size(shape.in), y_size = plane_size(shape.out);
  parallel_tasks(shape.planes, work_of(shape), [&](int64_t plane) {
    for_each_tile(shape, [&](const RowTile& tile) {
      float sum[row_tile] = {}, inverse[row_tile];
      for_each_tap(shape, tile, [&](int64_t begin, int64_t count, int64_t from, int64_t) {
        add_strided(sum + begin, x + plane * x_size + from, shape.strides[2], count);
      });
      inverse_counts(shape, tile, inverse);
      float* to = y + plane * y_size + tile.output_at(shape);
      for (int64_t i = 0; i < tile.width; ++i) to[i] = sum[i] * inverse[i];
    });
  });
}

void average_pool_grad(const PoolShape& shape, float* dx, const float* dy) {
  const int64_t x_size = plane_size(shape.in), y_size = plane_size(shape.out);
  parallel_tasks(shape.planes, work_of(shape), [&](int64_t plane) {
    float* to = dx + plane * x_size;
    std::fill_n(to, x_size, 0.0f);
    for_each_tile(shape, [&](const RowTile& tile) {
      float share[row_tile];
      inverse_counts(shape, tile, share);
      const float* from = dy + plane * y_size + tile.output_at(shape);
      for (int64_t i = 0; i < tile.width; ++i) share[i] *= from[i];
      for_each_tap(shape, tile, [&](int64_t begin, int64_t count, int64_t first, int64_t) {
        for (int64_t i = 0; i < count; ++i) to[first + i * shape.strides[2]] += share[begin + i];
      });
    });
  });
}

}  // namespace plimsoll::cpu
