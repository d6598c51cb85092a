#include "kernels/cuda/conv/space_to_batch.h"

#include "kernels/cuda/common/rows.cuh"

#include <algorithm>

namespace plimsoll::cuda {
namespace {

constexpr int block_threads = 256, piece_bytes = 16, pieces_of_thread = 4;
constexpr int64_t max_blocks = 65535;

// Reads the image and writes all of the phases, once. Blocks go down the rows of all phases, a thread moves a piece of
// a row.
__global__ void __launch_bounds__(block_threads)
    split_kernel(uint4* __restrict__ phases, const uint4* __restrict__ image, Phases p) {
  const int pieces = static_cast<int>(p.pixel_bytes / piece_bytes),
            row_pieces = static_cast<int>(p.phase_size[1]) * pieces;
  const int height = static_cast<int>(p.phase_size[0]), steps_down = static_cast<int>(p.step[0]),
            steps_across = static_cast<int>(p.step[1]);
  const int rows = static_cast<int>(p.batch) * steps_down * steps_across * height;
  for (int phase_row = static_cast<int>(blockIdx.y); phase_row < rows; phase_row += static_cast<int>(gridDim.y)) {
    const int phase = phase_row / height, b_down = phase / steps_across, b = b_down / steps_down;
    const int row = (phase_row - phase * height) * steps_down + b_down - b * steps_down;
    const int first_column = phase - b_down * steps_across;
    for (int at = static_cast<int>(blockIdx.x) * block_threads + static_cast<int>(threadIdx.x); at < row_pieces;
         at += static_cast<int>(gridDim.x) * block_threads) {
      const int pixel = at / pieces;
      const int column = pixel * steps_across + first_column;
      const bool is_inside = row < p.size[0] && column < p.size[1];
      const int64_t from = ((b * p.size[0] + row) * p.size[1] + column) * pieces + at - pixel * pieces;
      phases[int64_t{phase_row} * row_pieces + at] = is_inside ? image[from] : make_uint4(0, 0, 0, 0);
    }
  }
}

// Writes all of the image, once.
__global__ void __launch_bounds__(block_threads)
    join_kernel(uint4* __restrict__ image, const uint4* __restrict__ phases, Phases p) {
  const int pieces = static_cast<int>(p.pixel_bytes / piece_bytes), row_pieces = static_cast<int>(p.size[1]) * pieces;
  const int height = static_cast<int>(p.size[0]), steps_down = static_cast<int>(p.step[0]),
            steps_across = static_cast<int>(p.step[1]);
  for (int image_row = static_cast<int>(blockIdx.y); image_row < static_cast<int>(p.batch) * height;
       image_row += static_cast<int>(gridDim.y)) {
    const int b = image_row / height, row = image_row - b * height;
    const int row_in_phase = row / steps_down, down = row - row_in_phase * steps_down;
    for (int at = static_cast<int>(blockIdx.x) * block_threads + static_cast<int>(threadIdx.x); at < row_pieces;
         at += static_cast<int>(gridDim.x) * block_threads) {
      const int column = at / pieces, in_phase = column / steps_across;
      const int phase = (b * steps_down + down) * steps_across + column - in_phase * steps_across;
      const int64_t pixel = (phase * p.phase_size[0] + row_in_phase) * p.phase_size[1] + in_phase;
      image[int64_t{image_row} * row_pieces + at] = phases[pixel * pieces + at - column * pieces];
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(block_threads) add_part_kernel(float* sum, const T* part, bool first, int64_t n) {
  for (int64_t i = int64_t{blockIdx.x} * block_threads + threadIdx.x; i < n; i += int64_t{gridDim.x} * block_threads)
    sum[i] = first ? widen(part[i]) : sum[i] + widen(part[i]);
}

dim3 blocks_for(int64_t row_pieces, int64_t rows) {
  return {static_cast<unsigned>(std::min(divide_up(row_pieces, block_threads * pieces_of_thread), max_blocks)),
          static_cast<unsigned>(std::min(rows, max_blocks))};
}

}  // namespace

cudaError_t split_phases(void* phases, const void* image, const Phases& sizes, cudaStream_t stream) {
  const int64_t row_pieces = sizes.phase_size[1] * (sizes.pixel_bytes / piece_bytes),
                rows = sizes.batch * sizes.step[0] * sizes.step[1] * sizes.phase_size[0];
  if (rows * row_pieces == 0) return cudaSuccess;
  split_kernel<<<blocks_for(row_pieces, rows), block_threads, 0, stream>>>(static_cast<uint4*>(phases),
                                                                           static_cast<const uint4*>(image), sizes);
  return cudaGetLastError();
}

cudaError_t join_phases(void* image, const void* phases, const Phases& sizes, cudaStream_t stream) {
  const int64_t row_pieces = sizes.size[1] * (sizes.pixel_bytes / piece_bytes), rows = sizes.batch * sizes.size[0];
  if (rows * row_pieces == 0) return cudaSuccess;
  join_kernel<<<blocks_for(row_pieces, rows), block_threads, 0, stream>>>(static_cast<uint4*>(image),
                                                                          static_cast<const uint4*>(phases), sizes);
  return cudaGetLastError();
}

cudaError_t add_part(float* sum, Scalar type, const void* part, bool first, int64_t n, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  return with_f32_math(type, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    add_part_kernel<<<static_cast<unsigned>(std::min(divide_up(n, block_threads), max_blocks)), block_threads, 0,
                      stream>>>(sum, static_cast<const T*>(part), first, n);
    return cudaGetLastError();
  });
}

}  // namespace plimsoll::cuda
