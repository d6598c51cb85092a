#include "kernels/cuda/attention/attention_masks.cuh"
#include "kernels/cuda/attention/mask_rows.h"
#include "kernels/division.h"

// What is made of masks before attention and its gradient ("mma", "one_pass") meet their tiles. Of a mask of columns,
// what it does to tiles of them: one block for each batch element of the mask reads it twice. Of a mask with rows,
// where they end within a word of 16 bytes, a copy: a thread makes a word element by element, and its neighbours find
// theirs in the same lines of the cache.

namespace plimsoll::cuda {
namespace {

constexpr int block_warps = 8;

// A number so far below others is as good as -inf where a row has any other: exp of it is 0 for every score there is.
constexpr float far_below = -1e30f, not_far_below = -1e20f;

// What a mask adds to a score, and -inf where it closes it.
__device__ float added_by(uint8_t open) { return open ? 0.0f : -INFINITY; }
template <typename M>
__device__ float added_by(M value) {
  return widen(value);
}

template <typename T>
__global__ void __launch_bounds__(32 * block_warps) column_tiles_kernel(AttentionShape n) {
  const Head head{blockIdx.x, 0};
  const int lane = static_cast<int>(threadIdx.x) % 32, columns = static_cast<int>(n.columns);
  const int tiles = (columns + column_tile - 1) / column_tile;
  with_mask<T>(n, head, [&](auto* mask) {
    auto added = [&](int column) { return added_by(mask[column * n.mask_strides[3]]); };
    bool has_open = false;
    for (int column = static_cast<int>(threadIdx.x); column < columns; column += 32 * block_warps)
      has_open |= added(column) > not_far_below;
    // Where every row meets every column, a row has an open one or none has.
    const bool closes_finite = __syncthreads_or(has_open) != 0 && !n.causal && n.window == 0 && !n.segments;
    const float closed = closes_finite ? far_below : -INFINITY;
    for (int tile = static_cast<int>(threadIdx.x) / 32; tile < tiles; tile += block_warps) {
      bool is_open = true, is_closed = true;
      for (int i = lane; i < column_tile && tile * column_tile + i < columns; i += 32) {
        const float value = added(tile * column_tile + i);
        is_open &= value == 0.0f;
        is_closed &= value <= closed;
      }
      is_open = __all_sync(whole_warp, is_open);
      is_closed = __all_sync(whole_warp, is_closed);
      if (lane == 0)
        n.column_tiles[int64_t{blockIdx.x} * tiles + tile] = is_open     ? ColumnTile::Open
                                                             : is_closed ? ColumnTile::Closed
                                                                         : ColumnTile::Mixed;
    }
  });
}

constexpr unsigned copying_threads = 256;

template <typename E>
__global__ void __launch_bounds__(copying_threads)
    mask_rows_kernel(uint4* to, const E* from, unsigned rows, unsigned columns, unsigned words_of_row) {
  constexpr unsigned of_word = sizeof(uint4) / sizeof(E);
  const unsigned word = blockIdx.x * copying_threads + threadIdx.x, row = word / words_of_row;
  if (row >= rows) return;
  const unsigned first = (word - row * words_of_row) * of_word;
  const E* const at = from + int64_t{row} * columns + first;
  union {
    uint4 whole;
    E elements[of_word];
  } made;
#pragma unroll
  for (unsigned i = 0; i < of_word; ++i) made.elements[i] = first + i < columns ? at[i] : E{0};
  to[word] = made.whole;
}

template <typename E>
void launch_mask_rows(void* to, const void* from, int64_t rows, int64_t columns, cudaStream_t stream) {
  const int64_t words_of_row = mask_pitch(columns, sizeof(E)) / (sizeof(uint4) / sizeof(E));
  mask_rows_kernel<<<static_cast<unsigned>(divide_up(rows * words_of_row, copying_threads)), copying_threads, 0,
                     stream>>>(static_cast<uint4*>(to), static_cast<const E*>(from), static_cast<unsigned>(rows),
                               static_cast<unsigned>(columns), static_cast<unsigned>(words_of_row));
}

}  // namespace

cudaError_t copy_mask_rows(void* to, const void* from, int64_t rows, int64_t columns, int64_t bytes,
                           cudaStream_t stream) {
  if (rows * columns == 0) return cudaSuccess;
  if (bytes == 4)
    launch_mask_rows<uint32_t>(to, from, rows, columns, stream);
  else
    launch_mask_rows<uint16_t>(to, from, rows, columns, stream);
  return cudaGetLastError();
}

cudaError_t launch_column_tiles(const AttentionShape& shape, cudaStream_t stream) {
  if (!shape.column_tiles || shape.columns == 0) return cudaSuccess;
  const auto samples = static_cast<unsigned>(shape.mask_strides[0] != 0 ? shape.batch : 1);
  return with_16_bit_float(shape.type, [&](auto* element) {
    column_tiles_kernel<std::remove_pointer_t<decltype(element)>><<<samples, 32 * block_warps, 0, stream>>>(shape);
    return cudaGetLastError();
  });
}

}  // namespace plimsoll::cuda
