#include "kernels/cpu/elementwise/f8.h"

#include "kernels/cpu/common/f8_code.h"
#include "kernels/cpu/common/parallel.h"

#include <atomic>
#include <cstring>
#include <limits>

namespace plimsoll::cpu {
namespace {

constexpr uint32_t size_bits = 0x7fffffff, infinity_bits = 0x7f800000;

// Of numbers without their signs, bits are ordered as the numbers are, and those of NaN come last.
PLIMSOLL_VECTORISED uint32_t largest_bits(const float* x, int64_t begin, int64_t end) {
  uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & size_bits);
  return largest;
}

struct E4M3 {
  static constexpr float largest = 448;
  static PLIMSOLL_INLINE uint8_t code(float x) { return f8_code<3, 7>(x); }
};
struct E5M2 {
  static constexpr float largest = 57344;
  static PLIMSOLL_INLINE uint8_t code(float x) { return f8_code<2, 15>(x); }
};

template <typename Format>
PLIMSOLL_INLINE uint8_t code_of(float scaled) {
  return Format::code(scaled > Format::largest    ? Format::largest
                      : scaled < -Format::largest ? -Format::largest
                                                  : scaled);
}

// Of numbers that share a scale, or of one in each column, with scales of their own. Factors are powers of two.
template <typename Format>
PLIMSOLL_INLINE void code_run(const float* x, int64_t n, float factor, uint8_t* codes) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) codes[i] = code_of<Format>(x[i] * factor);
}
template <typename Format>
PLIMSOLL_INLINE void code_columns(const float* x, int64_t n, const float* scales, uint8_t* codes) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) codes[i] = code_of<Format>(x[i] * (1 / scales[i]));
}

PLIMSOLL_VECTORISED void e4m3_run(const float* x, int64_t n, float factor, uint8_t* codes) {
  code_run<E4M3>(x, n, factor, codes);
}
PLIMSOLL_VECTORISED void e5m2_run(const float* x, int64_t n, float factor, uint8_t* codes) {
  code_run<E5M2>(x, n, factor, codes);
}
PLIMSOLL_VECTORISED void e4m3_columns(const float* x, int64_t n, const float* scales, uint8_t* codes) {
  code_columns<E4M3>(x, n, scales, codes);
}
PLIMSOLL_VECTORISED void e5m2_columns(const float* x, int64_t n, const float* scales, uint8_t* codes) {
  code_columns<E5M2>(x, n, scales, codes);
}

// sizes[i] becomes the larger of itself and x[i] without its sign.
PLIMSOLL_VECTORISED void take_larger(const float* x, int64_t n, uint32_t* sizes) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) sizes[i] = std::max(sizes[i], std::bit_cast<uint32_t>(x[i]) & size_bits);
}

float scale_of(uint32_t bits, Scalar codes) {
  if (bits == 0) return 1;
  if (bits >= infinity_bits) return std::numeric_limits<float>::quiet_NaN();
  // Both types end at 1.75 times a power of two.
  constexpr uint32_t mantissa = 0x7fffff, of_largest = 0x600000;
  const int to = codes == Scalar::F8E4M3 ? 8 : 15;
  const int exponent = static_cast<int>(bits >> 23) - 127 - to + ((bits & mantissa) > of_largest ? 1 : 0);
  return std::bit_cast<float>(static_cast<uint32_t>(std::max(exponent, -126) + 127) << 23);
}

// Codes of x by way of tiles, so that both layouts are written in runs; run(row, column, n, codes) makes those of n
// numbers of a row.
template <typename Run>
void store_codes(int64_t rows, int64_t columns, uint8_t* codes, uint8_t* turned, Run run) {
  constexpr int64_t side = 64;
  parallel_rows((rows + side - 1) / side, 4 * side * columns, [&](int64_t begin, int64_t end) {
    uint8_t tile[side][side];
    for (int64_t row = begin * side; row < std::min(rows, end * side); row += side) {
      const int64_t high = std::min(side, rows - row);
      for (int64_t column = 0; column < columns; column += side) {
        const int64_t wide = std::min(side, columns - column);
        for (int64_t r = 0; r < high; ++r) {
          run(row + r, column, wide, tile[r]);
          if (codes) std::memcpy(codes + (row + r) * columns + column, tile[r], static_cast<size_t>(wide));
        }
        for (int64_t c = 0; turned && c < wide; ++c)
          for (int64_t r = 0; r < high; ++r) turned[(column + c) * rows + row + r] = tile[r][c];
      }
    }
  });
}

PLIMSOLL_VECTORISED void from_f8_run(const uint8_t* codes, int64_t n, const float* values, float scale, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = values[codes[i]] * scale;
}

// Sizes of the numbers that share each scale, of whole blocks of rows and a range of columns.
void largest_of_blocks(const float* x, int64_t columns, const ScaleGrid& grid, int64_t begin_row, int64_t end_row,
                       int64_t begin, int64_t end, uint32_t* sizes) {
  for (int64_t row = begin_row; row < end_row; ++row) {
    uint32_t* own = sizes + row / grid.block_rows * grid.row_step;
    const float* numbers = x + row * columns;
    if (grid.block_columns == 1 && grid.column_step == 1) {
      take_larger(numbers + begin, end - begin, own + begin);
      continue;
    }
    for (int64_t column = begin; column < end; column += grid.block_columns) {
      uint32_t& size = own[column / grid.block_columns * grid.column_step];
      size = std::max(size, largest_bits(numbers, column, std::min(column + grid.block_columns, end)));
    }
  }
}

}  // namespace

float f8_scale(const float* x, int64_t n, Scalar codes) {
  std::atomic<uint32_t> all{0};
  parallel_ranges(n, 1, [&](int64_t begin, int64_t end) {
    const uint32_t own = largest_bits(x, begin, end);
    for (uint32_t seen = all; seen < own && !all.compare_exchange_weak(seen, own);) {
    }
  });
  return scale_of(all, codes);
}

void to_f8(const float* x, int64_t rows, int64_t columns, float scale, Scalar type, uint8_t* codes, uint8_t* turned) {
  const auto run = type == Scalar::F8E4M3 ? e4m3_run : e5m2_run;
  const float factor = 1 / scale;
  store_codes(rows, columns, codes, turned, [&](int64_t row, int64_t column, int64_t n, uint8_t* to) {
    run(x + row * columns + column, n, factor, to);
  });
}

// The scales' memory first has the bits of the largest numbers. Threads have scales of their own: blocks of rows, or
// where these are all rows, columns.
void to_scaled_f8(const float* x, int64_t rows, int64_t columns, const ScaleGrid& grid, Scalar type, float* scales,
                  int64_t count, uint8_t* codes, Layout layout) {
  auto* sizes = reinterpret_cast<uint32_t*>(scales);
  std::fill(sizes, sizes + count, 0u);
  if (grid.block_columns == 1 && grid.block_rows >= rows)
    parallel_ranges(columns, rows, [&](int64_t begin, int64_t end) {
      largest_of_blocks(x, columns, grid, 0, rows, begin, end, sizes);
    });
  else
    parallel_rows((rows + grid.block_rows - 1) / grid.block_rows, grid.block_rows * columns,
                  [&](int64_t begin, int64_t end) {
                    largest_of_blocks(x, columns, grid, begin * grid.block_rows, std::min(end * grid.block_rows, rows),
                                      0, columns, sizes);
                  });
  for (int64_t i = 0; i < count; ++i) scales[i] = scale_of(sizes[i], type);
  const bool e4m3 = type == Scalar::F8E4M3, by_column = grid.block_columns == 1;
  const auto run = e4m3 ? e4m3_run : e5m2_run;
  const auto run_columns = e4m3 ? e4m3_columns : e5m2_columns;
  store_codes(rows, columns, layout == Layout::AsIs ? codes : nullptr, layout == Layout::Turned ? codes : nullptr,
              [&](int64_t row, int64_t column, int64_t n, uint8_t* to) {
                const float* own =
                    scales + row / grid.block_rows * grid.row_step + column / grid.block_columns * grid.column_step;
                const float* numbers = x + row * columns + column;
                by_column ? run_columns(numbers, n, own, to) : run(numbers, n, 1 / *own, to);
              });
}

void from_f8(const uint8_t* codes, int64_t rows, int64_t columns, const float* values, const float* scales,
             const ScaleGrid& grid, float* y) {
  parallel_rows(rows, 2 * columns, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t column = 0; column < columns; column += grid.block_columns) {
        const int64_t at = row * columns + column;
        from_f8_run(codes + at, std::min(grid.block_columns, columns - column), values,
                    scales[row / grid.block_rows * grid.row_step + column / grid.block_columns * grid.column_step],
                    y + at);
      }
  });
}

}  // namespace plimsoll::cpu
