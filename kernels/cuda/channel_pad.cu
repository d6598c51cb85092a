#include "kernels/cuda/channel_pad.h"

#include "kernels/cuda/rows.cuh"

#include <algorithm>

namespace plimsoll::cuda {
namespace {

constexpr int block_threads = 256, piece = 8;  // elements of a 16-byte store
constexpr int64_t most_blocks = 1 << 20;

unsigned blocks_for(int64_t threads) {
  return static_cast<unsigned>(std::min(divide_up(threads, block_threads), most_blocks));
}

// A thread a piece of a padded row. `x` holds bits: nothing is computed.
__global__ void __launch_bounds__(block_threads)
    pad_kernel(uint4* padded, const uint16_t* x, int64_t pieces, int64_t channels, int64_t pieces_of_row) {
  for (int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x; i < pieces; i += int64_t{gridDim.x} * block_threads) {
    const int64_t row = pieces_of_row == 1 ? i : i / pieces_of_row, first = (i - row * pieces_of_row) * piece;
    uint32_t words[piece / 2] = {};
#pragma unroll
    for (int c = 0; c < piece; ++c)
      if (first + c < channels) words[c / 2] |= uint32_t{x[row * channels + first + c]} << (c % 2 * 16);
    padded[i] = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

template <typename To, typename From>
__global__ void __launch_bounds__(block_threads)
    drop_kernel(To* x, const From* padded, int64_t elements, int64_t channels, int64_t padded_channels) {
  for (int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x; i < elements; i += int64_t{gridDim.x} * block_threads) {
    const int64_t row = i / channels;
    x[i] = narrow<To>(widen(padded[row * padded_channels + i - row * channels]));
  }
}

}  // namespace

cudaError_t pad_channels(void* padded, const void* x, int64_t rows, int64_t channels, int64_t padded_channels, cudaStream_t stream) {
  const int64_t pieces_of_row = padded_channels / piece, pieces = rows * pieces_of_row;
  if (pieces == 0) return cudaSuccess;
  pad_kernel<<<blocks_for(pieces), block_threads, 0, stream>>>(static_cast<uint4*>(padded), static_cast<const uint16_t*>(x), pieces, channels, pieces_of_row);
  return cudaGetLastError();
}

cudaError_t drop_channels(Scalar to, void* x, Scalar from, const void* padded, int64_t rows, int64_t channels, int64_t padded_channels,
                          cudaStream_t stream) {
  const int64_t elements = rows * channels;
  if (elements == 0) return cudaSuccess;
  return with_f32_math(from, [&](auto* element) {
    using From = std::remove_pointer_t<decltype(element)>;
    const auto launch = [&](auto* result) {
      drop_kernel<<<blocks_for(elements), block_threads, 0, stream>>>(result, static_cast<const From*>(padded), elements, channels, padded_channels);
      return cudaGetLastError();
    };
    return to == from ? launch(static_cast<From*>(x)) : launch(static_cast<float*>(x));
  });
}

}  // namespace plimsoll::cuda
