#include "kernels/cuda/conv/space_to_batch.h"

#include "kernels/cuda/common/rows.cuh"

#include <algorithm>

// Serves conv, conv_dx and conv_dw before and after cuDNN, where runtime/kernels/space_to_batch.h applies. Each tensor
// is read or written once.

namespace plimsoll::cuda {
namespace {

constexpr int piece_bytes = 16, pieces_of_thread = 4;
constexpr int64_t max_blocks = 65535;

// Reads the image and writes all of the sub-images, once. Blocks go down the rows of all sub-images, a thread moves a
// piece of a row.
__global__ void __launch_bounds__(block_threads)
    space_to_batch_kernel(uint4* __restrict__ sub_images, const uint4* __restrict__ image, SpaceToBatch s) {
  const int pieces = static_cast<int>(s.pixel_bytes / piece_bytes),
            row_pieces = static_cast<int>(s.sub_size[1]) * pieces;
  const int height = static_cast<int>(s.sub_size[0]), steps_down = static_cast<int>(s.step[0]),
            steps_across = static_cast<int>(s.step[1]);
  const int rows = static_cast<int>(s.batch) * steps_down * steps_across * height;
  for (int sub_row = static_cast<int>(blockIdx.y); sub_row < rows; sub_row += static_cast<int>(gridDim.y)) {
    const int sub_image = sub_row / height, b_down = sub_image / steps_across, b = b_down / steps_down;
    const int row = (sub_row - sub_image * height) * steps_down + b_down - b * steps_down;
    const int first_column = sub_image - b_down * steps_across;
    for (int at = static_cast<int>(blockIdx.x) * block_threads + static_cast<int>(threadIdx.x); at < row_pieces;
         at += static_cast<int>(gridDim.x) * block_threads) {
      const int pixel = at / pieces;
      const int column = pixel * steps_across + first_column;
      const bool is_inside = row < s.size[0] && column < s.size[1];
      const int64_t from = ((b * s.size[0] + row) * s.size[1] + column) * pieces + at - pixel * pieces;
      sub_images[int64_t{sub_row} * row_pieces + at] = is_inside ? image[from] : make_uint4(0, 0, 0, 0);
    }
  }
}

// Writes all of the image, once.
__global__ void __launch_bounds__(block_threads)
    batch_to_space_kernel(uint4* __restrict__ image, const uint4* __restrict__ sub_images, SpaceToBatch s) {
  const int pieces = static_cast<int>(s.pixel_bytes / piece_bytes), row_pieces = static_cast<int>(s.size[1]) * pieces;
  const int height = static_cast<int>(s.size[0]), steps_down = static_cast<int>(s.step[0]),
            steps_across = static_cast<int>(s.step[1]);
  for (int image_row = static_cast<int>(blockIdx.y); image_row < static_cast<int>(s.batch) * height;
       image_row += static_cast<int>(gridDim.y)) {
    const int b = image_row / height, row = image_row - b * height;
    const int row_in_sub = row / steps_down, down = row - row_in_sub * steps_down;
    for (int at = static_cast<int>(blockIdx.x) * block_threads + static_cast<int>(threadIdx.x); at < row_pieces;
         at += static_cast<int>(gridDim.x) * block_threads) {
      const int column = at / pieces, in_sub = column / steps_across;
      const int sub_image = (b * steps_down + down) * steps_across + column - in_sub * steps_across;
      const int64_t pixel = (sub_image * s.sub_size[0] + row_in_sub) * s.sub_size[1] + in_sub;
      image[int64_t{image_row} * row_pieces + at] = sub_images[pixel * pieces + at - column * pieces];
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(block_threads) add_chunk_kernel(float* sum, const T* chunk, bool first, int64_t n) {
  for (int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x; i < n; i += int64_t{gridDim.x} * block_threads)
    sum[i] = first ? widen(chunk[i]) : sum[i] + widen(chunk[i]);
}

dim3 grid_for(int64_t row_pieces, int64_t rows) {
  return {static_cast<unsigned>(std::min(divide_up(row_pieces, block_threads * pieces_of_thread), max_blocks)),
          static_cast<unsigned>(std::min(rows, max_blocks))};
}

}  // namespace

cudaError_t space_to_batch(void* sub_images, const void* image, const SpaceToBatch& sizes, cudaStream_t stream) {
  const int64_t row_pieces = sizes.sub_size[1] * (sizes.pixel_bytes / piece_bytes),
                rows = sizes.batch * sizes.step[0] * sizes.step[1] * sizes.sub_size[0];
  if (rows * row_pieces == 0) return cudaSuccess;
  space_to_batch_kernel<<<grid_for(row_pieces, rows), block_threads, 0, stream>>>(
      static_cast<uint4*>(sub_images), static_cast<const uint4*>(image), sizes);
  return cudaGetLastError();
}

cudaError_t batch_to_space(void* image, const void* sub_images, const SpaceToBatch& sizes, cudaStream_t stream) {
  const int64_t row_pieces = sizes.size[1] * (sizes.pixel_bytes / piece_bytes), rows = sizes.batch * sizes.size[0];
  if (rows * row_pieces == 0) return cudaSuccess;
  batch_to_space_kernel<<<grid_for(row_pieces, rows), block_threads, 0, stream>>>(
      static_cast<uint4*>(image), static_cast<const uint4*>(sub_images), sizes);
  return cudaGetLastError();
}

cudaError_t add_chunk(float* sum, Scalar type, const void* chunk, bool first, int64_t n, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  return with_f32_math(type, [&]<typename T>(T*) {
    add_chunk_kernel<<<static_cast<unsigned>(std::min(divide_up(n, block_threads), max_blocks)), block_threads, 0,
                       stream>>>(sum, static_cast<const T*>(chunk), first, n);
  });
}

}  // namespace plimsoll::cuda
