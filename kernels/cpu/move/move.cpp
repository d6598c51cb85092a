#include "kernels/cpu/move/move.h"

#include "kernels/cpu/common/parallel.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <utility>

// A copy may run its loops in any order, so the nest is first turned until the cheap case is innermost:
// contiguous runs become memcpy; two dimensions contiguous on one side each become square tiles.

namespace plimsoll::cpu {

namespace {

constexpr int64_t tile = 64;

void swap_dimensions(LoopNest<2>& nest, int a, int b) {
  std::swap(nest.sizes[a], nest.sizes[b]);
  for (auto& strides : nest.strides) std::swap(strides[a], strides[b]);
}

// Destination-contiguous dimension last where there is one.
void order_for_stores(LoopNest<2>& nest) {
  for (int d = 0; d + 1 < nest.rank; ++d) {
    if (nest.strides[0][nest.rank - 1] == 1) return;
    if (nest.strides[0][d] == 1) return swap_dimensions(nest, d, nest.rank - 1);
  }
}

template <typename T>
void copy_run(T* to, const T* from, int64_t to_step, int64_t from_step, int64_t n) {
  if (to_step == 1 && from_step == 1)
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(T));
  else if (to_step == 1 && from_step == 0)
    std::fill_n(to, n, *from);
  else
    for (int64_t i = 0; i < n; ++i) to[i * to_step] = from[i * from_step];
}

// A tile on its way. Its rows are longer than it is wide, so that its columns do not share sets of the cache.
template <typename T>
using Tile = T[tile][tile + 8];

// In each 2 * `bits` bits, the high half of the first word and the low half of the second change places.
template <int bits>
void exchange(uint64_t& first, uint64_t& second, uint64_t low_halves) {
  const uint64_t changed = ((first >> bits) ^ second) & low_halves;
  second ^= changed;
  first ^= changed << bits;
}

// 8 x 8 bytes as eight words: halves, then quarters, then bytes change places (Warren 2003).
void transpose_bytes(uint8_t* to, int64_t to_step, const uint8_t* from, int64_t from_step) {
  uint64_t words[8];
  for (int64_t j = 0; j < 8; ++j) std::memcpy(&words[j], from + j * from_step, 8);
  for (int j : {0, 1, 2, 3}) exchange<32>(words[j], words[j + 4], 0x00000000ffffffff);
  for (int j : {0, 1, 4, 5}) exchange<16>(words[j], words[j + 2], 0x0000ffff0000ffff);
  for (int j : {0, 2, 4, 6}) exchange<8>(words[j], words[j + 1], 0x00ff00ff00ff00ff);
  for (int64_t i = 0; i < 8; ++i) std::memcpy(to + i * to_step, &words[i], 8);
}

void transpose_whole_tile(uint8_t* to, const uint8_t* from, int64_t to_step, int64_t from_step) {
  Tile<uint8_t> turned;
  for (int64_t j = 0; j < tile; j += 8)
    for (int64_t i = 0; i < tile; i += 8)
      transpose_bytes(&turned[i][j], std::size(turned[0]), from + i + j * from_step, from_step);
  for (int64_t i = 0; i < tile; ++i) std::memcpy(to + i * to_step, turned[i], tile);
}

// Lines this far apart share so few sets of a cache that a tile's do not stay in it until they are used up.
template <typename T>
bool share_sets(int64_t step) {
  return step * static_cast<int64_t>(sizeof(T)) % 256 == 0;
}

// to[i * to_step + j] = from[i + j * from_step]. Quarters of a tile of words stay in the first cache.
template <typename T>
void transpose_small(T* to, const T* from, int64_t to_step, int64_t from_step, int64_t rows, int64_t columns) {
  constexpr int64_t half = tile / 2;
  for (int64_t i0 = 0; i0 < rows; i0 += half)
    for (int64_t j0 = 0; j0 < columns; j0 += half) {
      const int64_t i1 = std::min(rows, i0 + half), j1 = std::min(columns, j0 + half);
      for (int64_t i = i0; i < i1; ++i)
        for (int64_t j = j0; j < j1; ++j) to[i * to_step + j] = from[i + j * from_step];
    }
}

template <typename T>
void transpose_tile(T* to, const T* from, int64_t to_step, int64_t from_step, int64_t rows, int64_t columns) {
  if (!share_sets<T>(from_step)) return transpose_small(to, from, to_step, from_step, rows, columns);
  if constexpr (sizeof(T) == 1 && std::endian::native == std::endian::little)
    if (rows == tile && columns == tile) return transpose_whole_tile(to, from, to_step, from_step);
  Tile<T> held;
  for (int64_t j = 0; j < columns; ++j) std::copy_n(from + j * from_step, rows, held[j]);
  transpose_small(to, held[0], to_step, std::size(held[0]), rows, columns);
}

// The same tile by tile.
template <typename T>
void transpose_plane(T* to, const T* from, int64_t to_step, int64_t from_step, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; i += tile)
    for (int64_t j = 0; j < columns; j += tile)
      transpose_tile(to + i * to_step + j, from + i + j * from_step, to_step, from_step, std::min(tile, rows - i),
                     std::min(tile, columns - j));
}

// The dimension along which the source is contiguous while the last one is contiguous in the destination, or
// -1.
int transposed_dimension(const LoopNest<2>& nest) {
  const int last = nest.rank - 1;
  if (nest.strides[0][last] != 1 || nest.strides[1][last] == 1 || nest.strides[1][last] == 0) return -1;
  for (int d = 0; d < last; ++d)
    if (nest.strides[1][d] == 1 && nest.sizes[d] >= 8 && nest.sizes[last] >= 8) return d;
  return -1;
}

template <typename T>
void transpose_planes(LoopNest<2> nest, int dimension, T* to, const T* from) {
  const int last = nest.rank - 1;
  swap_dimensions(nest, dimension, last - 1);
  const int64_t rows = nest.sizes[last - 1], columns = nest.sizes[last];
  const int64_t to_step = nest.strides[0][last - 1], from_step = nest.strides[1][last];
  // Strips of rows are tasks of their own, so that one big plane also uses every thread.
  const int64_t strip = 2 * tile, strips = (rows + strip - 1) / strip;
  const int64_t planes = nest.iterations() / (rows * columns);
  parallel_tasks(planes * strips, nest.iterations(), [&](int64_t task) {
    const int64_t plane = task / strips, row = task % strips * strip;
    walk_outer(nest, 2, plane, plane + 1, [&](const std::array<int64_t, 2>& at) {
      transpose_plane(to + at[0] + row * to_step, from + at[1] + row, to_step, from_step, std::min(strip, rows - row),
                      columns);
    });
  });
}

template <typename T>
void copy_typed(const LoopNest<2>& full, T* to, const T* from) {
  LoopNest<2> nest = collapse(full);
  if (nest.iterations() == 0) return;
  order_for_stores(nest);
  const int dimension = transposed_dimension(nest);
  if (dimension >= 0) return transpose_planes(nest, dimension, to, from);

  const int last = nest.rank - 1;
  const int64_t run = nest.sizes[last], to_step = nest.strides[0][last], from_step = nest.strides[1][last];
  const int64_t outer = nest.iterations() / run;
  if (outer == 1) {
    parallel_ranges(run, 1, [&](int64_t begin, int64_t end) {
      copy_run(to + begin * to_step, from + begin * from_step, to_step, from_step, end - begin);
    });
    return;
  }
  parallel_rows(outer, run, [&](int64_t begin, int64_t end) {
    walk_outer(nest, 1, begin, end,
               [&](const std::array<int64_t, 2>& at) { copy_run(to + at[0], from + at[1], to_step, from_step, run); });
  });
}

template <typename T>
void fill_typed(void* to, const void* element, int64_t n) {
  T value;
  std::memcpy(&value, element, sizeof(T));
  T* out = static_cast<T*>(to);
  parallel_ranges(n, 1, [&](int64_t begin, int64_t end) { std::fill(out + begin, out + end, value); });
}

}  // namespace

void copy_strided(const LoopNest<2>& nest, void* to, const void* from, int element_bytes) {
  switch (element_bytes) {
    case 1: return copy_typed(nest, static_cast<uint8_t*>(to), static_cast<const uint8_t*>(from));
    case 2: return copy_typed(nest, static_cast<uint16_t*>(to), static_cast<const uint16_t*>(from));
    case 4: return copy_typed(nest, static_cast<uint32_t*>(to), static_cast<const uint32_t*>(from));
    default: return copy_typed(nest, static_cast<uint64_t*>(to), static_cast<const uint64_t*>(from));
  }
}

void copy_bytes(void* to, const void* from, int64_t bytes) {
  parallel_ranges(bytes, 1, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin,
                static_cast<size_t>(end - begin));
  });
}

void fill_elements(void* to, const void* element, int element_bytes, int64_t n) {
  switch (element_bytes) {
    case 1: return fill_typed<uint8_t>(to, element, n);
    case 2: return fill_typed<uint16_t>(to, element, n);
    case 4: return fill_typed<uint32_t>(to, element, n);
    default: return fill_typed<uint64_t>(to, element, n);
  }
}

template <typename Index>
static bool all_in_range(const Index* indices, int64_t count, int64_t size) {
  for (int64_t j = 0; j < count; ++j)
    if (indices[j] < -size || indices[j] >= size) return false;
  return true;
}

template <typename Index>
static int64_t row_of(Index index, int64_t size) {
  return index < 0 ? index + size : index;
}

template <typename Index>
bool gather_rows(void* y, const void* x, const Index* indices, int64_t outer, int64_t size, int64_t count,
                 int64_t inner_bytes) {
  if (!all_in_range(indices, count, size)) return false;
  char* out = static_cast<char*>(y);
  const char* in = static_cast<const char*>(x);
  parallel_rows(outer * count, inner_bytes, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t from = r / count * size + row_of(indices[r % count], size);
      std::memcpy(out + r * inner_bytes, in + from * inner_bytes, static_cast<size_t>(inner_bytes));
    }
  });
  return true;
}

template <typename Index>
bool gather_rows_grad(float* dx, const float* dy, const float* addend, const Index* indices, int64_t outer,
                      int64_t size, int64_t count, int64_t inner) {
  if (!all_in_range(indices, count, size)) return false;
  const float zero = 0;
  if (!addend)
    fill_elements(dx, &zero, sizeof(float), outer * size * inner);
  else if (addend != dx)
    std::copy_n(addend, outer * size * inner, dx);
  // A thread owns columns, never rows: rows named twice then add up in the order of the indices.
  parallel_ranges(inner, outer * count, [&](int64_t begin, int64_t end) {
    for (int64_t r = 0; r < outer * count; ++r) {
      float* to = dx + (r / count * size + row_of(indices[r % count], size)) * inner;
      const float* from = dy + r * inner;
      for (int64_t i = begin; i < end; ++i) to[i] += from[i];
    }
  });
  return true;
}

template bool gather_rows(void*, const void*, const int32_t*, int64_t, int64_t, int64_t, int64_t);
template bool gather_rows(void*, const void*, const int64_t*, int64_t, int64_t, int64_t, int64_t);
template bool gather_rows_grad(float*, const float*, const float*, const int32_t*, int64_t, int64_t, int64_t, int64_t);
template bool gather_rows_grad(float*, const float*, const float*, const int64_t*, int64_t, int64_t, int64_t, int64_t);

}  // namespace plimsoll::cpu
