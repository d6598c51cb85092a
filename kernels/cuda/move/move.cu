#include "kernels/cuda/move/move.h"

#include "kernels/cuda/common/element.cuh"
#include "kernels/cuda/common/nest.cuh"
#include "kernels/cuda/common/turned_words.cuh"
#include "kernels/cuda/common/wide_writes.cuh"
#include "kernels/cuda/move/short_sides.h"
#include "kernels/cuda/move/slabs.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

// Serves transpose, expand, tile, slice, split, concat and copies. Every element is read and written once.

namespace plimsoll::cuda {
namespace {

// A unit is an element or, where both sides walk along consecutive ones, up to 16 bytes of them.
template <typename Unit>
__global__ void __launch_bounds__(block_threads)
    copy_kernel(const __grid_constant__ DeviceNest<2> nest, int64_t n, Unit* to, const Unit* from) {
  const int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i >= n) return;
  int64_t at[2];
  nest.offsets(i, at);
  to[at[0]] = from[at[1]];
}

// Of the last dimension, where the elements that a warp reads at once are still in few sectors: steps in the source, or
// else elements, with neighbours along the dimension before.
constexpr int64_t longest_step = 4, shortest_rows = 8;

bool reads_neighbours(const LoopNest<2>& nest) {
  const int last = nest.rank - 1;
  if (last == 0 || nest.sizes[last] > INT32_MAX || nest.sizes[last - 1] > INT32_MAX) return false;
  if (nest.strides[1][last] <= longest_step) return true;
  return nest.sizes[last] <= shortest_rows && nest.strides[1][last - 1] == 1;
}

// The same where the destination is one run of all elements, from an address of 16 bytes on, and units are smaller.
// From row to row of a plane nothing is divided: the threads of a warp come to the ends of their rows at different
// places.
template <typename Unit>
__global__ void __launch_bounds__(block_threads)
    copy_wide_kernel(const __grid_constant__ DeviceNest<2> nest, int columns, int rows, int64_t n, Unit* to,
                     const Unit* from) {
  const int64_t first = (int64_t{blockIdx.x} * block_threads + threadIdx.x) * units_per_write<Unit>;
  if (first >= n) return;
  const int last = nest.rank - 1;
  const int64_t step = nest.strides[1][last], row_step = nest.strides[1][last - 1];
  int64_t rest = first, begin;
  const int64_t whole_rows = nest.sizes[last].divide(rest);
  int column = static_cast<int>(rest);
  rest = whole_rows;
  nest.sizes[last - 1].divide(rest);
  int row = static_cast<int>(rest);
  const auto find = [&](int64_t place) {
    int64_t at[2];
    nest.offsets(place, at);
    begin = at[1];
  };
  find(first - column);
  int64_t place = first;
  write_wide(to, first, n, [&] {
    if (column == columns) {
      column = 0;
      begin += row_step;
      if (++row == rows) {
        row = 0;
        find(place);
      }
    }
    ++place;
    return from[begin + column++ * step];
  });
}

// Whether the destination is one run of all elements in their order.
bool is_dense(const LoopNest<2>& nest) {
  int64_t step = 1;
  for (int d = nest.rank - 1; d >= 0; --d) {
    if (nest.strides[0][d] != step) return false;
    step *= nest.sizes[d];
  }
  return true;
}

// ---- Transposition through shared memory ----

constexpr int tile_side = 64, tile_columns = 32, tile_rows = block_threads / tile_columns;

// to[i * to_stride + j] = from[i + j * from_stride] for i < rows, j < columns, in every plane of the nest.
struct Planes {
  DeviceNest<2> nest;
  int64_t rows, columns, to_stride, from_stride;
  Divider row_tiles, column_tiles;
};

// One tile a block. Rows of the tile are padded by 4 bytes at least, so that walking down a column meets every bank.
template <typename T>
__global__ void __launch_bounds__(block_threads)
    transpose_kernel(const __grid_constant__ Planes planes, T* to, const T* from) {
  constexpr int pad = sizeof(T) < 4 ? 4 / static_cast<int>(sizeof(T)) : 1;
  __shared__ T tile[tile_side][tile_side + pad];
  int64_t row_tile = blockIdx.x;
  int64_t column_tile = planes.row_tiles.divide(row_tile);
  const int64_t plane = planes.column_tiles.divide(column_tile);
  int64_t base[2];
  planes.nest.offsets(plane, base);
  const int64_t first_row = row_tile * tile_side, first_column = column_tile * tile_side;
  const int lane = threadIdx.x % tile_columns, warp = threadIdx.x / tile_columns;

#pragma unroll
  for (int j = warp; j < tile_side; j += tile_rows)
#pragma unroll
    for (int i = lane; i < tile_side; i += tile_columns)
      if (first_row + i < planes.rows && first_column + j < planes.columns)
        tile[j][i] = from[base[1] + first_row + i + (first_column + j) * planes.from_stride];
  __syncthreads();
#pragma unroll
  for (int i = warp; i < tile_side; i += tile_rows)
#pragma unroll
    for (int j = lane; j < tile_side; j += tile_columns)
      if (first_row + i < planes.rows && first_column + j < planes.columns)
        to[base[0] + (first_row + i) * planes.to_stride + first_column + j] = tile[j][i];
}

// ---- The same, four narrow elements at a time ----

constexpr int word_length = 4, side_words = 32, side_elements = side_words * word_length;
constexpr int64_t shortest_side = 64;  // in elements; of shorter ones most of a tile would be empty

// Planes in words: strides, rows and columns are those of words of four elements, which each side reads along its run.
// Each thread turns squares of 4 x 4 elements. Words of a tile's row are stored at their own number xor that of the
// square's row, so that neither going along rows nor down columns meets a bank twice.
template <typename Word>
__global__ void __launch_bounds__(block_threads)
    transpose_words_kernel(const __grid_constant__ Planes planes, Word* __restrict__ to,
                           const Word* __restrict__ from) {
  constexpr int warps = block_threads / side_words, squares = side_words / warps;
  __shared__ Word tile[side_elements][side_words];
  int64_t row_tile = blockIdx.x;
  int64_t column_tile = planes.row_tiles.divide(row_tile);
  const int64_t plane = planes.column_tiles.divide(column_tile);
  int64_t base[2];
  planes.nest.offsets(plane, base);
  const int lane = static_cast<int>(threadIdx.x) % side_words, warp = static_cast<int>(threadIdx.x) / side_words;
  const int64_t first_row = row_tile * side_words, first_column = column_tile * side_words;

  Word columns[squares][word_length];
#pragma unroll
  for (int s = 0; s < squares; ++s) {
    const int64_t row = first_row + lane, column = first_column + warp + s * warps;
    if (row >= planes.rows || column >= planes.columns) continue;
#pragma unroll
    for (int c = 0; c < word_length; ++c)
      columns[s][c] = from[base[1] + row + (column * word_length + c) * planes.from_stride];
  }
#pragma unroll
  for (int s = 0; s < squares; ++s) {
    Word rows[word_length];
    turn_words(columns[s], rows);
#pragma unroll
    for (int r = 0; r < word_length; ++r) tile[lane * word_length + r][(warp + s * warps) ^ lane] = rows[r];
  }
  __syncthreads();
#pragma unroll
  for (int i = warp; i < side_elements; i += warps) {
    const int64_t row = first_row * word_length + i, column = first_column + lane;
    if (row < planes.rows * word_length && column < planes.columns)
      to[base[0] + row * planes.to_stride + column] = tile[i][lane ^ (i / word_length)];
  }
}

// The dimension along which the source is consecutive while the destination is along the last; -1 where there is
// none, or where one of the two is too short for tiles to pay.
int transposed_dimension(const LoopNest<2>& nest) {
  const int last = nest.rank - 1;
  constexpr int64_t shortest = 16;
  if (nest.strides[0][last] != 1 || nest.sizes[last] < shortest) return -1;
  for (int d = 0; d < last; ++d)
    if (nest.strides[1][d] == 1 && nest.sizes[d] >= shortest) return d;
  return -1;
}

// Whether tiles of two dimensions would be empty for the most part, or there are none. Of little, blocks would look up
// places for longer than they move.
bool wants_slabs(const LoopNest<2>& nest, int unit) {
  constexpr int64_t shortest_tile_side = 32, least_bytes = int64_t{1} << 20;
  const int dimension = transposed_dimension(nest);
  const bool has_full_tiles =
      dimension >= 0 && std::min(nest.sizes[dimension], nest.sizes[nest.rank - 1]) > shortest_tile_side;
  return !has_full_tiles && nest.iterations() * unit >= least_bytes;
}

// In which {dimension} is the source's run: planes with sides of at most `side` in a tile.
Planes planes_of(const LoopNest<2>& nest, int dimension, int side) {
  const int last = nest.rank - 1;
  LoopNest<2> outer;
  for (int d = 0; d < last; ++d)
    if (d != dimension) outer.add_dimension(nest.sizes[d], {nest.strides[0][d], nest.strides[1][d]});
  Planes planes;
  planes.nest = DeviceNest<2>(collapse(outer));
  planes.rows = nest.sizes[dimension];
  planes.columns = nest.sizes[last];
  planes.to_stride = nest.strides[0][dimension];
  planes.from_stride = nest.strides[1][last];
  planes.row_tiles = Divider(blocks_for(planes.rows, side));
  planes.column_tiles = Divider(blocks_for(planes.columns, side));
  return planes;
}

unsigned blocks_of(const LoopNest<2>& nest, int dimension, int side) {
  const int64_t rows = nest.sizes[dimension], columns = nest.sizes[nest.rank - 1];
  const int64_t planes = nest.iterations() / (rows * columns);
  return static_cast<unsigned>(planes * blocks_for(rows, side) * blocks_for(columns, side));
}

// Whether each side's runs are whole words at addresses of words; then the nest in words.
template <typename Word>
bool in_words(LoopNest<2>& nest, int dimension, const void* to, const void* from) {
  const int last = nest.rank - 1;
  if (nest.sizes[dimension] < shortest_side || nest.sizes[last] < shortest_side) return false;
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % sizeof(Word) != 0) return false;
  if (nest.sizes[dimension] % word_length != 0 || nest.sizes[last] % word_length != 0) return false;
  LoopNest<2> words = nest;
  words.sizes[dimension] /= word_length;
  words.sizes[last] /= word_length;
  for (int side = 0; side < 2; ++side)
    for (int d = 0; d < nest.rank; ++d) {
      if (d == (side == 0 ? last : dimension)) continue;  // the run
      if (nest.strides[side][d] % word_length != 0) return false;
      words.strides[side][d] /= word_length;
    }
  nest = words;
  return true;
}

template <typename Word>
cudaError_t transpose_words(const LoopNest<2>& nest, int dimension, void* to, const void* from, cudaStream_t stream) {
  transpose_words_kernel<<<blocks_of(nest, dimension, side_words), block_threads, 0, stream>>>(
      planes_of(nest, dimension, side_words), static_cast<Word*>(to), static_cast<const Word*>(from));
  return cudaGetLastError();
}

template <typename T>
cudaError_t transpose(LoopNest<2> nest, int dimension, T* to, const T* from, cudaStream_t stream) {
  if constexpr (sizeof(T) <= 2) {
    using Word = std::conditional_t<sizeof(T) == 1, FourBytes, FourHalves>;
    if (in_words<Word>(nest, dimension, to, from)) return transpose_words<Word>(nest, dimension, to, from, stream);
  }
  transpose_kernel<<<blocks_of(nest, dimension, tile_side), block_threads, 0, stream>>>(
      planes_of(nest, dimension, tile_side), to, from);
  return cudaGetLastError();
}

// ---- Wider units ----

bool divides(int64_t unit, int64_t bytes) { return bytes % unit == 0; }

// Whether runs, steps and both addresses are whole numbers of units.
bool moves_in_units(const LoopNest<2>& nest, const void* to, const void* from, int element_bytes, int unit) {
  const int last = nest.rank - 1;
  if (nest.strides[0][last] != 1 || nest.strides[1][last] != 1) return false;
  if (!divides(unit, nest.sizes[last] * element_bytes)) return false;
  if (!divides(unit, static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from))))
    return false;
  for (int d = 0; d < last; ++d)
    if (!divides(unit, nest.strides[0][d] * element_bytes) || !divides(unit, nest.strides[1][d] * element_bytes))
      return false;
  return true;
}

// The nest in units of 16 bytes or fewer, and the bytes of a unit.
std::pair<LoopNest<2>, int> in_wide_units(LoopNest<2> nest, const void* to, const void* from, int element_bytes) {
  int unit = 16;
  while (unit > element_bytes && !moves_in_units(nest, to, from, element_bytes, unit)) unit /= 2;
  const int elements = unit / element_bytes, last = nest.rank - 1;
  if (elements == 1) return {nest, unit};
  nest.sizes[last] /= elements;
  for (int t = 0; t < 2; ++t)
    for (int d = 0; d < last; ++d) nest.strides[t][d] /= elements;
  return {collapse(nest), unit};
}

}  // namespace

cudaError_t copy_strided(const LoopNest<2>& full, void* to, const void* from, int element_bytes, cudaStream_t stream) {
  if (full.iterations() == 0) return cudaSuccess;
  const auto [nest, unit] = in_wide_units(collapse(full), to, from, element_bytes);
  if (nest.rank == 1 && nest.strides[0][0] == 1 && nest.strides[1][0] == 1)
    return copy_bytes(to, from, nest.sizes[0] * unit, stream);
  if (const std::optional<cudaError_t> turned = transpose_short_side(nest, to, from, unit, stream)) return *turned;
  if (wants_slabs(nest, unit))
    if (const std::optional<cudaError_t> moved = permute_slabs(nest, to, from, unit, stream)) return *moved;
  return with_unit_bytes(unit, [&, &nest = nest]<typename Unit>(Unit*) {
    if constexpr (sizeof(Unit) <= 8)
      if (const int dimension = transposed_dimension(nest); dimension >= 0)
        return transpose(nest, dimension, static_cast<Unit*>(to), static_cast<const Unit*>(from), stream);
    const int64_t n = nest.iterations();
    constexpr int most = units_per_write<Unit>;
    if (most > 1 && takes_wide_writes(to) && is_dense(nest) && reads_neighbours(nest)) {
      const auto size = [&](int d) { return static_cast<int>(nest.sizes[d]); };
      copy_wide_kernel<<<blocks_for(n, block_threads * most), block_threads, 0, stream>>>(
          DeviceNest<2>(nest), size(nest.rank - 1), size(nest.rank - 2), n, static_cast<Unit*>(to),
          static_cast<const Unit*>(from));
      return cudaGetLastError();
    }
    copy_kernel<<<blocks_for(n), block_threads, 0, stream>>>(DeviceNest<2>(nest), n, static_cast<Unit*>(to),
                                                             static_cast<const Unit*>(from));
    return cudaGetLastError();
  });
}

cudaError_t copy_bytes(void* to, const void* from, int64_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  return cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream);
}

cudaError_t zero_bytes(void* to, int64_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  return cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), stream);
}

}  // namespace plimsoll::cuda
