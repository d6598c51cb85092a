#include "kernels/cuda/conv/space_to_depth.h"

#include "kernels/cuda/common/rows.cuh"

#include <algorithm>

// Serves conv and conv_dw before and after cuDNN, where runtime/kernels/space_to_depth.h applies. Each tensor is read
// or written once.

namespace plimsoll::cuda {
namespace {

constexpr int piece = 8;  // elements of a 16-byte store
constexpr int64_t max_blocks = 65535;

// Reads the image and writes all of the blocks, once. A thread for each piece of several rows of blocks, whose elements
// are all on their way at once; thread blocks go down the rows of all images. A row of a pixel's block is one run of
// elements in memory, at whose ends lie pads. `image` holds bits: nothing is computed.
constexpr int rows_at_once = 4;

__global__ void __launch_bounds__(block_threads)
    space_to_depth_kernel(uint4* __restrict__ blocks, const uint16_t* __restrict__ image, SpaceToDepth s) {
  const int pieces = static_cast<int>(s.block_channels) / piece, row_pieces = static_cast<int>(s.blocks[1]) * pieces;
  const int channels = static_cast<int>(s.channels), run = static_cast<int>(s.block[1]) * channels;
  const int row_elements = static_cast<int>(s.size[1]) * channels, row_read = static_cast<int>(s.read[1]) * channels;
  const int height = static_cast<int>(s.blocks[0]), rows_of_all = static_cast<int>(s.batch) * height;
  for (int first_row = static_cast<int>(blockIdx.y) * rows_at_once; first_row < rows_of_all;
       first_row += static_cast<int>(gridDim.y) * rows_at_once) {
    for (int at = static_cast<int>(blockIdx.x) * block_threads + static_cast<int>(threadIdx.x); at < row_pieces;
         at += static_cast<int>(gridDim.x) * block_threads) {
      const int pixel = at / pieces, first = (at - pixel * pieces) * piece;
      const int left = pixel * run - static_cast<int>(s.pad[1]) * channels;
      int down = first / run, across = first - down * run;
      int rows_down[piece], elements[piece];  // of an element outside the image to the left or right, none
#pragma unroll
      for (int i = 0; i < piece; ++i) {
        const int element = left + across;
        rows_down[i] = down;
        elements[i] = down < s.block[0] && element >= 0 && element < row_read ? element : -1;
        if (++across == run) across = 0, ++down;
      }
      uint32_t words[rows_at_once][piece / 2];
#pragma unroll
      for (int k = 0; k < rows_at_once; ++k) {
        const int block_row = first_row + k, b = block_row / height;
        const int top = static_cast<int>((block_row - b * height) * s.block[0] - s.pad[0]);
        const uint16_t* rows = image + (b * s.size[0] + top) * row_elements;
#pragma unroll
        for (int i = 0; i < piece; ++i) {
          const int row = top + rows_down[i];
          uint32_t bits = 0;
          if (block_row < rows_of_all && elements[i] >= 0 && row >= 0 && row < s.read[0])
            bits = rows[int64_t{rows_down[i]} * row_elements + elements[i]];
          words[k][i / 2] = i % 2 == 0 ? bits : words[k][i / 2] | bits << 16;
        }
      }
#pragma unroll
      for (int k = 0; k < rows_at_once; ++k)
        if (first_row + k < rows_of_all)
          blocks[int64_t{first_row + k} * row_pieces + at] =
              make_uint4(words[k][0], words[k][1], words[k][2], words[k][3]);
    }
  }
}

template <typename To, typename From>
__global__ void __launch_bounds__(block_threads)
    depth_to_space_kernel(To* image, const From* blocks, int elements, SpaceToDepth s) {
  const int channels = static_cast<int>(s.channels), width = static_cast<int>(s.size[1]),
            height = static_cast<int>(s.size[0]);
  const int block_height = static_cast<int>(s.block[0]), block_width = static_cast<int>(s.block[1]);
  const int at = static_cast<int>(blockIdx.x) * block_threads + static_cast<int>(threadIdx.x);
  if (at >= elements) return;
  const int pixel = at / channels, c = at - pixel * channels;
  const int row = pixel / width, across = pixel - row * width;
  const int b = row / height, down = row - b * height;
  const int block_down = down / block_height, block_across = across / block_width;
  const int in_block = (down - block_down * block_height) * block_width + across - block_across * block_width;
  const int64_t block_at = (b * s.blocks[0] + block_down) * s.blocks[1] + block_across;
  image[at] = narrow<To>(widen(blocks[block_at * s.block_channels + in_block * channels + c]));
}

}  // namespace

cudaError_t space_to_depth(void* blocks, const void* image, const SpaceToDepth& sizes, cudaStream_t stream) {
  const int64_t rows = sizes.batch * sizes.blocks[0], row_pieces = sizes.blocks[1] * (sizes.block_channels / piece);
  if (rows * row_pieces == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(std::min(divide_up(row_pieces, block_threads), max_blocks)),
                  static_cast<unsigned>(std::min(divide_up(rows, rows_at_once), max_blocks)));
  space_to_depth_kernel<<<grid, block_threads, 0, stream>>>(static_cast<uint4*>(blocks),
                                                            static_cast<const uint16_t*>(image), sizes);
  return cudaGetLastError();
}

cudaError_t depth_to_space(Scalar to, void* image, Scalar from, const void* blocks, const SpaceToDepth& sizes,
                           cudaStream_t stream) {
  const int64_t elements = sizes.batch * sizes.size[0] * sizes.size[1] * sizes.channels;
  if (elements == 0) return cudaSuccess;
  return with_f32_math(from, [&]<typename From>(From*) {
    const auto launch = [&](auto* result) {
      depth_to_space_kernel<<<blocks_for(elements), block_threads, 0, stream>>>(
          result, static_cast<const From*>(blocks), static_cast<int>(elements), sizes);
      return cudaGetLastError();
    };
    return to == from ? launch(static_cast<From*>(image)) : launch(static_cast<float*>(image));
  });
}

}  // namespace plimsoll::cuda
