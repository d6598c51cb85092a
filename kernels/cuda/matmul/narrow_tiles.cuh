#pragma once

// Tiles of rows of a few columns each, which move between memory and shared memory as the run of bytes that they are:
// accesses have 16 bytes whatever a row has.

#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/common/rows.cuh"
#include "kernels/cuda/common/tensor_core.cuh"

namespace plimsoll::cuda {

// Blocks that a multiprocessor holds at once, so that there are registers for what is kept of the weights.
template <int few>
inline constexpr int resident_blocks = few <= 4 ? 3 : 2;

inline bool is_at_16_bytes(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

// Begins to copy a run of elements to shared memory; what is no whole access, or nothing where `from` is at no border
// of 16 bytes, is there when all threads have come so far.
template <typename T>
__device__ void fetch_run(T* to, const T* from, int count, bool is_aligned) {
  constexpr int n = vector_length<T>;
  const int whole = is_aligned ? count / n * n : 0;
  for (int i = static_cast<int>(threadIdx.x) * n; i < whole; i += block_threads * n) copy_async(to + i, from + i, true);
  for (int i = whole + static_cast<int>(threadIdx.x); i < count; i += block_threads) to[i] = from[i];
}

template <typename T>
__device__ void store_run(T* to, const T* from, int count, bool is_aligned) {
  constexpr int n = vector_length<T>;
  const int whole = is_aligned ? count / n * n : 0;
  for (int i = static_cast<int>(threadIdx.x) * n; i < whole; i += block_threads * n)
    store_packed(to + i, load_packed<n>(from + i));
  for (int i = whole + static_cast<int>(threadIdx.x); i < count; i += block_threads) to[i] = from[i];
}

// The `count` elements of a row, and zeros up to `most`.
template <int most, typename T>
__device__ void load_row(float (&values)[most], const T* row, int count) {
  if (count == most) {
    constexpr int n = most < vector_length<T> ? most : vector_length<T>;
#pragma unroll
    for (int i = 0; i < most; i += n) {
      const Packed<T, n> packed = load_packed<n>(row + i);
#pragma unroll
      for (int j = 0; j < n; ++j) values[i + j] = packed[j];
    }
  } else {
#pragma unroll
    for (int i = 0; i < most; ++i) values[i] = i < count ? widen(row[i]) : 0.0f;
  }
}

// To shared memory, which store_packed does not write.
template <int most, typename T>
__device__ void store_row(T* row, const float (&values)[most]) {
  constexpr int n = most < vector_length<T> ? most : vector_length<T>;
#pragma unroll
  for (int i = 0; i < most; i += n) {
    float part[n];
#pragma unroll
    for (int j = 0; j < n; ++j) part[j] = values[i + j];
    const Packed<T, n> packed = pack<T>(part);
    if constexpr (packed.words == 4)
      *reinterpret_cast<uint4*>(row + i) = make_uint4(packed.word[0], packed.word[1], packed.word[2], packed.word[3]);
    else
      *reinterpret_cast<uint2*>(row + i) = make_uint2(packed.word[0], packed.word[1]);
  }
}

// A power of 2 of neighbouring threads that share a row of `wide` elements, of which each has up to `held`.
inline int threads_across(int64_t wide, int held) {
  int across = 1;
  while (across * held < wide) across *= 2;
  return across;
}

// Calls launch(few, held): the narrow side's elements, rounded up, and how many of the wide side's a thread has.
template <typename Launch>
void with_narrow_rows(int64_t narrow, int64_t wide, Launch launch) {
  const auto with = [&](auto few, auto held) { launch(few, held); };
  using std::integral_constant;
  constexpr integral_constant<int, 4> four;
  constexpr integral_constant<int, 8> eight;
  if (narrow > 8) return with(integral_constant<int, 16>(), four);
  if (narrow > 4) return with(eight, eight);
  if (narrow > 2) return wide > 4 ? with(four, eight) : with(four, four);
  return wide > 4 ? with(integral_constant<int, 2>(), eight) : with(integral_constant<int, 2>(), four);
}

}  // namespace plimsoll::cuda
