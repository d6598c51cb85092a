#include "kernels/cpu/reduce/reduce.h"

#include "kernels/cpu/common/parallel.h"
#include "kernels/cpu/common/row_math.h"

#include <algorithm>
#include <cmath>
#include <limits>

// Two shapes of loop cover every set of axes. When the innermost (collapsed) dimension is reduced,
// each result adds up contiguous runs. When it is kept, a tile of neighbouring results grows row by row.

namespace plimsoll::cpu {

namespace {

constexpr int64_t squares_block = 65536;
constexpr int64_t column_tile = 256;

struct Axes {
  LoopNest<2> kept;     // tensors: result, source
  LoopNest<1> reduced;  // tensor: source
  bool reduced_innermost = false;
};

Axes split_axes(const ReductionShape& shape) {
  Axes axes;
  std::array<int64_t, max_rank> source_stride{}, result_stride{};
  int64_t source = 1, result = 1;
  for (int d = shape.rank - 1; d >= 0; --d) {
    source_stride[d] = source;
    result_stride[d] = result;
    source *= shape.sizes[d];
    if (!shape.reduced[d]) result *= shape.sizes[d];
  }
  for (int d = 0; d < shape.rank; ++d) {
    if (shape.sizes[d] == 1) continue;
    axes.reduced_innermost = shape.reduced[d];
    if (shape.reduced[d])
      axes.reduced.add_dimension(shape.sizes[d], {source_stride[d]});
    else
      axes.kept.add_dimension(shape.sizes[d], {result_stride[d], source_stride[d]});
  }
  axes.kept = collapse(axes.kept);
  axes.reduced = collapse(axes.reduced);
  return axes;
}

double start_of(Reduction kind) {
  switch (kind) {
    case Reduction::Max: return -std::numeric_limits<double>::infinity();
    case Reduction::Min: return std::numeric_limits<double>::infinity();
    case Reduction::Product: return 1;
    default: return 0;
  }
}

double join(Reduction kind, double total, const float* x, int64_t n) {
  switch (kind) {
    case Reduction::Max: {
      const double best = max_of(x, n);
      return best > total || std::isnan(best) ? best : total;
    }
    case Reduction::Min: {
      const double best = min_of(x, n);
      return best < total || std::isnan(best) ? best : total;
    }
    case Reduction::Product: return total * product_of(x, n);
    default: return total + sum_of(x, n);
  }
}

void join_row(Reduction kind, float* total, const float* x, int64_t n) {
  switch (kind) {
    case Reduction::Max: return max_to(total, x, n);
    case Reduction::Min: return min_to(total, x, n);
    case Reduction::Product: return multiply_to(total, x, n);
    default: return add_to(total, x, n);
  }
}

void reduce_runs(Reduction kind, const Axes& axes, double factor, float* y, const float* x) {
  const int last = axes.reduced.rank - 1;
  const int64_t run = axes.reduced.sizes[last];
  const int64_t runs = axes.reduced.iterations() / run;
  parallel_rows(axes.kept.iterations(), runs * run, [&](int64_t begin, int64_t end) {
    walk_outer(axes.kept, 0, begin, end, [&](const std::array<int64_t, 2>& at) {
      double total = start_of(kind);
      walk_outer(axes.reduced, 1, 0, runs,
                 [&](const std::array<int64_t, 1>& offset) { total = join(kind, total, x + at[1] + offset[0], run); });
      y[at[0]] = static_cast<float>(total * factor);
    });
  });
}

// One tile of neighbouring results. A sum's rows are added in groups, and the groups in another accumulator,
// so that rounding grows with the square root of the count only.
void reduce_tile(Reduction kind, const Axes& axes, double factor, float* y, const float* x, int64_t width) {
  constexpr int64_t rows_per_group = 64;
  float group[column_tile], total[column_tile];
  const auto start = static_cast<float>(start_of(kind));
  std::fill_n(group, width, start);
  std::fill_n(total, width, start);
  int64_t row = 0;
  walk_outer(axes.reduced, 0, 0, axes.reduced.iterations(), [&](const std::array<int64_t, 1>& offset) {
    join_row(kind, group, x + offset[0], width);
    if (++row % rows_per_group) return;
    join_row(kind, total, group, width);
    std::fill_n(group, width, start);
  });
  join_row(kind, total, group, width);
  scale(y, total, static_cast<float>(factor), width);
}

void reduce_columns(Reduction kind, const Axes& axes, double factor, float* y, const float* x) {
  const int64_t width = axes.kept.sizes[axes.kept.rank - 1];
  const int64_t tiles = (width + column_tile - 1) / column_tile;
  const int64_t outer = axes.kept.iterations() / width;
  // Narrower tiles when there are too few to share out.
  const int64_t tile = outer * tiles < 16 ? std::max<int64_t>(16, (width / 16 + 15) / 16 * 16) : column_tile;
  const int64_t step = std::min(tile, column_tile), steps = (width + step - 1) / step;
  parallel_tasks(outer * steps, axes.kept.iterations() * axes.reduced.iterations(), [&](int64_t task) {
    const int64_t column = task % steps * step;
    walk_outer(axes.kept, 1, task / steps, task / steps + 1, [&](const std::array<int64_t, 2>& at) {
      reduce_tile(kind, axes, factor, y + at[0] + column, x + at[1] + column, std::min(step, width - column));
    });
  });
}

}  // namespace

void reduce(Reduction kind, const ReductionShape& shape, float* y, const float* x) {
  const Axes axes = split_axes(shape);
  const int64_t results = axes.kept.iterations(), count = axes.reduced.iterations();
  if (results == 0) return;
  if (count == 0) {
    const double empty = kind == Reduction::Mean ? std::numeric_limits<double>::quiet_NaN() : start_of(kind);
    std::fill_n(y, results, static_cast<float>(empty));
    return;
  }
  const double factor = kind == Reduction::Mean ? 1.0 / static_cast<double>(count) : 1.0;
  if (axes.reduced_innermost || results == 1)
    reduce_runs(kind, axes, factor, y, x);
  else
    reduce_columns(kind, axes, factor, y, x);
}

int64_t sum_squares_partials(int64_t n) { return (n + squares_block - 1) / squares_block; }

double* partial_sums_of_squares(double* partials, const float* x, int64_t n) {
  const int64_t blocks = sum_squares_partials(n);
  parallel_tasks(blocks, n, [&](int64_t block) {
    const int64_t begin = block * squares_block;
    partials[block] = sum_of_squares(x + begin, std::min(squares_block, n - begin));
  });
  return partials + blocks;
}

}  // namespace plimsoll::cpu
