#include "kernels/cuda/common/element.cuh"
#include "kernels/cuda/common/nest.cuh"
#include "kernels/cuda/move/short_sides.h"

// A thread reads a word of 16 bytes of every plane, which holds elements of neighbouring rows, and writes these rows as
// words of 16 bytes, or the other way round.

namespace plimsoll::cuda {
namespace {

constexpr int word_bytes = 16;

template <typename T>
constexpr int word_length = word_bytes / static_cast<int>(sizeof(T));

// The two dimensions that change places: the short one, of `side` elements, and the other.
struct ShortSide {
  int side = 0, short_dimension = -1, long_dimension = -1;
  bool into_rows = false;  // the destination has the short dimension innermost, the source the long one
};

// In words along the long dimension.
struct Turn {
  DeviceNest<2> nest;    // of all other dimensions, in elements
  Divider words;         // of a plane
  int64_t total, pitch;  // words in all; elements from plane to plane
};

template <typename T, int side, bool into_rows>
__global__ void __launch_bounds__(block_threads)
    turn_kernel(const __grid_constant__ Turn turn, T* __restrict__ to, const T* __restrict__ from) {
  constexpr int length = word_length<T>;
  union Words {
    uint4 words[side];
    T elements[side * length];
  } planes, rows;
  int64_t word = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (word >= turn.total) return;
  const int64_t others = turn.words.divide(word);
  int64_t base[2];
  turn.nest.offsets(others, base);
  const T* source = from + base[1];
  T* target = to + base[0];
  if constexpr (into_rows) {
#pragma unroll
    for (int s = 0; s < side; ++s)
      planes.words[s] = *reinterpret_cast<const uint4*>(source + s * turn.pitch + word * length);
#pragma unroll
    for (int i = 0; i < side * length; ++i) rows.elements[i] = planes.elements[i % side * length + i / side];
#pragma unroll
    for (int s = 0; s < side; ++s) reinterpret_cast<uint4*>(target + word * length * side)[s] = rows.words[s];
  } else {
#pragma unroll
    for (int s = 0; s < side; ++s) rows.words[s] = reinterpret_cast<const uint4*>(source + word * length * side)[s];
#pragma unroll
    for (int i = 0; i < side * length; ++i) planes.elements[i % side * length + i / side] = rows.elements[i];
#pragma unroll
    for (int s = 0; s < side; ++s) *reinterpret_cast<uint4*>(target + s * turn.pitch + word * length) = planes.words[s];
  }
}

constexpr int max_side = 4;

ShortSide short_side_of(const LoopNest<2>& nest) {
  const int last = nest.rank - 1;
  if (nest.strides[0][last] != 1) return {};
  for (int d = 0; d < last; ++d) {
    if (nest.strides[1][d] != 1) continue;
    const int64_t inner = nest.sizes[last], outer = nest.sizes[d];
    if (inner >= 2 && inner <= max_side && nest.strides[0][d] == inner) return {static_cast<int>(inner), last, d, true};
    if (outer >= 2 && outer <= max_side && nest.strides[1][last] == outer)
      return {static_cast<int>(outer), d, last, false};
  }
  return {};
}

// Whether every plane and every run of rows begins at a word, and planes are whole words.
bool in_words(const LoopNest<2>& nest, const ShortSide& side, const void* to, const void* from, int length) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % word_bytes != 0) return false;
  if (nest.sizes[side.long_dimension] % length != 0) return false;
  if (nest.strides[side.into_rows ? 1 : 0][side.short_dimension] % length != 0) return false;
  for (int d = 0; d < nest.rank; ++d)
    if (d != side.short_dimension && d != side.long_dimension)
      if (nest.strides[0][d] % length != 0 || nest.strides[1][d] % length != 0) return false;
  return true;
}

template <typename T, int side>
void launch(const Turn& turn, bool into_rows, T* to, const T* from, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(blocks_for(turn.total));
  if (into_rows)
    turn_kernel<T, side, true><<<blocks, block_threads, 0, stream>>>(turn, to, from);
  else
    turn_kernel<T, side, false><<<blocks, block_threads, 0, stream>>>(turn, to, from);
}

}  // namespace

std::optional<cudaError_t> transpose_short_side(const LoopNest<2>& nest, void* to, const void* from, int element_bytes,
                                                cudaStream_t stream) {
  const ShortSide side = short_side_of(nest);
  const int length = word_bytes / element_bytes;
  if (side.side == 0 || element_bytes > 4 || !in_words(nest, side, to, from, length)) return std::nullopt;
  LoopNest<2> others;
  for (int d = 0; d < nest.rank; ++d)
    if (d != side.short_dimension && d != side.long_dimension)
      others.add_dimension(nest.sizes[d], {nest.strides[0][d], nest.strides[1][d]});
  const int64_t words = nest.sizes[side.long_dimension] / length;
  Turn turn;
  turn.nest = DeviceNest<2>(collapse(others));
  turn.words = Divider(words);
  turn.total = nest.iterations() / (side.side * length);
  turn.pitch = nest.strides[side.into_rows ? 1 : 0][side.short_dimension];
  with_unit_bytes(element_bytes, [&]<typename T>(T*) {
    if constexpr (sizeof(T) <= 4) {
      T* target = static_cast<T*>(to);
      const T* source = static_cast<const T*>(from);
      if (side.side == 2) launch<T, 2>(turn, side.into_rows, target, source, stream);
      if (side.side == 3) launch<T, 3>(turn, side.into_rows, target, source, stream);
      if (side.side == 4) launch<T, 4>(turn, side.into_rows, target, source, stream);
    }
    return cudaSuccess;
  });
  return cudaGetLastError();
}

}  // namespace plimsoll::cuda
