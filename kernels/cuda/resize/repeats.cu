#include "kernels/cuda/resize/repeats.h"

#include "kernels/cuda/common/nest.cuh"
#include "kernels/cuda/common/packed.cuh"

#include <type_traits>

// Serves resize and resize_grad ("repeats"). x and y are moved once. A thread makes an access of up to 16 bytes of one
// line of y, of words that stand in one pixel of x each, and writes it to all lines that repeat it; or it sums what
// repeats a word of dx.

namespace plimsoll::cuda {
namespace {

template <int bytes>
using Word =
    std::conditional_t<bytes == 16, uint4,
                       std::conditional_t<bytes == 8, uint2, std::conditional_t<bytes == 4, uint32_t, uint16_t>>>;

// The largest access that divides all of them.
int access_bytes(int64_t bytes) { return bytes % 16 == 0 ? 16 : bytes % 8 == 0 ? 8 : bytes % 4 == 0 ? 4 : 2; }

// A line of x or of y in words.
struct RepeatedLine {
  Divider units;  // of a line: accesses of y, words of dx
  Divider32 pixel_words, across;
  int64_t count;  // of all threads' items
  int64_t read_words, written_words;
  int words_of_pixel, across_count, down;
};

template <int unit, int word>
__global__ void __launch_bounds__(block_threads)
    repeat_kernel(const __grid_constant__ RepeatedLine l, Word<unit>* y, const Word<word>* __restrict__ x) {
  constexpr int words = unit / word;
  int64_t at = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (at >= l.count) return;
  const int64_t line = l.units.divide(at);
  const Word<word>* from = x + line * l.read_words;
  union {
    Word<unit> whole;
    Word<word> parts[words];
  } made;
#pragma unroll
  for (int i = 0; i < words; ++i) {
    int32_t of_pixel = static_cast<int32_t>(at) * words + i;
    const int32_t pixel = l.pixel_words.divide(of_pixel);
    made.parts[i] = from[l.across.quotient(pixel) * l.words_of_pixel + of_pixel];
  }
  Word<unit>* to = y + line * l.down * l.written_words + at;
  for (int i = 0; i < l.down; ++i) to[i * l.written_words] = made.whole;
}

template <typename T, int length>
__global__ void __launch_bounds__(block_threads)
    sum_repeats_kernel(const __grid_constant__ RepeatedLine l, T* dx, const T* __restrict__ dy) {
  int64_t at = int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (at >= l.count) return;
  T* to = dx + at * length;
  const int64_t line = l.units.divide(at);
  auto of_pixel = static_cast<int32_t>(at);
  const int32_t pixel = l.pixel_words.divide(of_pixel);
  const T* from = dy + line * l.down * l.read_words * length +
                  (int64_t{pixel} * l.across_count * l.words_of_pixel + of_pixel) * length;
  float sums[length] = {};
  for (int i = 0; i < l.down; ++i, from += l.read_words * length)
#pragma unroll 4
    for (int j = 0; j < l.across_count; ++j) {
      const Packed<T, length> read = load_packed<length>(from + j * l.words_of_pixel * length);
#pragma unroll
      for (int e = 0; e < length; ++e) sums[e] += read[e];
    }
  store_packed(to, pack<T>(sums));
}

template <int unit, int word>
void launch_repeat(const Repeats& s, int64_t pixel_bytes, void* y, const void* x, cudaStream_t stream) {
  const int64_t line_bytes = pixel_bytes * s.width, units = line_bytes * s.across / unit;
  const auto words = static_cast<int32_t>(pixel_bytes / word);
  const RepeatedLine line{Divider(units),  Divider32(words),  Divider32(s.across),
                          s.lines * units, line_bytes / word, units,
                          words,           s.across,          s.down};
  repeat_kernel<unit, word><<<blocks_for(line.count), block_threads, 0, stream>>>(line, static_cast<Word<unit>*>(y),
                                                                                  static_cast<const Word<word>*>(x));
}

template <typename T, int length>
void launch_sum(const Repeats& s, void* dx, const void* dy, cudaStream_t stream) {
  const int64_t words = s.inner / length, units = words * s.width;
  const RepeatedLine line{Divider(units),
                          Divider32(static_cast<int32_t>(words)),
                          Divider32(1),
                          s.lines * units,
                          units * s.across,
                          units,
                          static_cast<int>(words),
                          s.across,
                          s.down};
  sum_repeats_kernel<T, length>
      <<<blocks_for(line.count), block_threads, 0, stream>>>(line, static_cast<T*>(dx), static_cast<const T*>(dy));
}

// visit(unit, word) with constants for these sizes; a word is no larger than its access.
template <typename Visit>
void with_accesses(int unit, int word, Visit visit) {
  const auto with_word = [&](auto size) {
    constexpr int u = decltype(size)::value;
    if (word >= 16 && u == 16) return visit(size, std::integral_constant<int, u>());
    if (word >= 8 && u >= 8) return visit(size, std::integral_constant < int, u >= 8 ? 8 : u > ());
    if (word >= 4 && u >= 4) return visit(size, std::integral_constant < int, u >= 4 ? 4 : u > ());
    visit(size, std::integral_constant<int, 2>());
  };
  if (unit == 16) return with_word(std::integral_constant<int, 16>());
  if (unit == 8) return with_word(std::integral_constant<int, 8>());
  if (unit == 4) return with_word(std::integral_constant<int, 4>());
  with_word(std::integral_constant<int, 2>());
}

template <typename T>
void sum_all(const Repeats& s, void* dx, const void* dy, cudaStream_t stream) {
  const int bytes = access_bytes(s.inner * static_cast<int64_t>(sizeof(T)));
  if constexpr (sizeof(T) == 2)
    if (bytes == 2) return launch_sum<T, 1>(s, dx, dy, stream);
  if (bytes == 16) return launch_sum<T, 16 / sizeof(T)>(s, dx, dy, stream);
  if (bytes == 8) return launch_sum<T, 8 / sizeof(T)>(s, dx, dy, stream);
  launch_sum<T, 4 / sizeof(T)>(s, dx, dy, stream);
}

}  // namespace

cudaError_t repeat(const Repeats& s, Scalar type, void* y, const void* x, cudaStream_t stream) {
  const int64_t pixel_bytes = s.inner * (type == Scalar::F32 ? 4 : 2), line_bytes = pixel_bytes * s.width * s.across;
  if (s.lines * line_bytes == 0) return cudaSuccess;
  with_accesses(access_bytes(line_bytes), access_bytes(pixel_bytes), [&](auto unit, auto word) {
    launch_repeat<decltype(unit)::value, decltype(word)::value>(s, pixel_bytes, y, x, stream);
  });
  return cudaGetLastError();
}

cudaError_t sum_repeats(const Repeats& s, Scalar type, void* dx, const void* dy, cudaStream_t stream) {
  if (s.lines * s.width * s.inner == 0) return cudaSuccess;
  if (type == Scalar::F32)
    sum_all<float>(s, dx, dy, stream);
  else if (type == Scalar::BF16)
    sum_all<bf16>(s, dx, dy, stream);
  else
    sum_all<f16>(s, dx, dy, stream);
  return cudaGetLastError();
}

}  // namespace plimsoll::cuda
