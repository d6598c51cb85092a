#include "kernels/cuda/common/early_launch.cuh"
#include "kernels/cuda/conv/pointwise.h"
#include "kernels/cuda/conv/pointwise_chunks.cuh"
#include "kernels/cuda/conv/sum_parts.h"
#include "kernels/cuda/conv/unit_tiles.cuh"

// Weight gradients of convolutions of one tap, whose chunks of pixels come as they lie in memory. The terms of products
// are pixels: a thread puts the same channel of two pixels into a word. Reads x and dy once.

namespace plimsoll::cuda {
namespace {

using Plan = PointwiseChunkSums;

struct ChunkSumMemory {
  uint8_t* pixels;
  RingBarriers ring;

  __device__ ChunkSumMemory(void* shared, const Plan& p) {
    pixels = bordered<Plan::border_bytes>(shared);
    ring = {reinterpret_cast<Barrier*>(pixels + p.stages * p.stage_bytes), p.stages};
  }
  __device__ void create(const Plan& p) const {
    if (threadIdx.x != 0) return;
    ring.create(Plan::warps);
    show_barriers_to_copies();
  }
};

// By one thread.
template <typename T>
__device__ void copy_chunks(const ChunkSumMemory& memory, const T* rows, const T* columns, const Plan& p) {
  RingPlace load;
  for (BlockChunks at(p); at.begin < at.end; ++at.begin) {
    const int pixels = pixels_of_chunk(p, at.begin);
    uint8_t* const to = memory.pixels + load.stage * p.stage_bytes;
    Barrier* const copied = memory.ring.copied(load.stage);
    wait_at(memory.ring.used(load.stage), load.parity ^ 1);
    arrive_with_copies(copied, pixels * (p.rows + p.columns) * 2);
    copy_bytes(to, rows + at.begin * p.chunk_pixels * p.rows, pixels * p.rows * 2, copied);
    copy_bytes(to + p.row_bytes, columns + at.begin * p.chunk_pixels * p.columns, pixels * p.columns * 2, copied);
    load.advance(p.stages);
  }
}

// A thread's pair of channels of four of 16 pixels, from `first` on, and `pixel_bytes` from one to the next. Each word
// becomes one of the pair's first channel, and one of its second.
__device__ inline void load_channels(uint32_t (&firsts)[2], uint32_t (&seconds)[2], uint32_t first, int pixel_bytes) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t low = load_pair(first + i * 8 * pixel_bytes), high = load_pair(first + (i * 8 + 1) * pixel_bytes);
    firsts[i] = __byte_perm(low, high, 0x5410), seconds[i] = __byte_perm(low, high, 0x7632);
  }
}

// Sums of tiles of 16 x 16, of whose rows and columns the first 8 are pairs' first channels, and the others their
// second ones.
template <int rows, int columns>
using ChunkSums = float[rows][columns][2][4];

template <typename T, int rows, int columns>
__device__ void add_chunks(ChunkSums<rows, columns>& sums, const ChunkSumMemory& memory, int row_part, int column_part,
                           int turn, const Plan& p) {
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, row_bytes = p.rows * 2, column_bytes = p.columns * 2;
  const int pixel = lane % 4 * 2, pair = lane / 4;
  const uint32_t pixels = shared_address(memory.pixels);
  const uint32_t of_rows = pixels + pixel * row_bytes + (row_part * rows * 8 + pair) * 4;
  const uint32_t of_columns = pixels + p.row_bytes + pixel * column_bytes + (column_part * columns * 8 + pair) * 4;
  RingPlace load;
  for (BlockChunks at(p); at.begin < at.end; ++at.begin) {
    const int steps = pixels_of_chunk(p, at.begin) / Plan::product_pixels;
    wait_at(memory.ring.copied(load.stage), load.parity);
#pragma unroll 1
    for (int step = turn < p.turns ? turn : steps; step < steps; step += p.turns) {
      const uint32_t in_stage = load.stage * p.stage_bytes;
      const uint32_t row = of_rows + in_stage + step * Plan::product_pixels * row_bytes,
                     column = of_columns + in_stage + step * Plan::product_pixels * column_bytes;
      LeftFragment left[rows];
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        uint32_t firsts[2], seconds[2];
        load_channels(firsts, seconds, row + i * 32, row_bytes);
        left[i] = {{firsts[0], seconds[0], firsts[1], seconds[1]}};
      }
#pragma unroll
      for (int j = 0; j < columns; ++j) {
        uint32_t firsts[2], seconds[2];
        load_channels(firsts, seconds, column + j * 32, column_bytes);
        const RightFragments right{{firsts[0], firsts[1], seconds[0], seconds[1]}};
#pragma unroll
        for (int i = 0; i < rows; ++i)
#pragma unroll
          for (int half = 0; half < 2; ++half) multiply_add<T>(sums[i][j][half], left[i], right, half);
      }
    }
    arrive_as_warp_at(memory.ring.used(load.stage));
    load.advance(p.stages);
  }
}

// partial[split]: as dw.
template <typename T, int rows, int columns>
__global__ void __launch_bounds__(Plan::threads, 1)
    pointwise_chunks_dw_kernel(float* __restrict__ partial, const T* of_rows, const T* of_columns,
                               const __grid_constant__ Plan p) {
  if constexpr (has_warpgroups) {
    let_next_launch_begin();
    extern __shared__ uint8_t shared[];
    const ChunkSumMemory memory(shared, p);
    auto* const all = reinterpret_cast<float*>(memory.pixels);  // in the end sums of each turn
    memory.create(p);
    __syncthreads();
    const int thread = static_cast<int>(threadIdx.x), warp = thread / warp_threads, lane = thread % warp_threads;
    const int parts = p.row_parts * p.column_parts, turn = warp / parts;
    const int row_part = warp % parts / p.column_parts, column_part = warp % p.column_parts;
    ChunkSums<rows, columns> sums = {};
    if (warp < Plan::warps)
      add_chunks<T>(sums, memory, row_part, column_part, turn, p);
    else if (thread == Plan::computing_threads)
      copy_chunks(memory, of_rows, of_columns, p);
    __syncthreads();
    if (turn < p.turns)
#pragma unroll
      for (int i = 0; i < rows; ++i)
#pragma unroll
        for (int j = 0; j < columns; ++j)
#pragma unroll
          for (int of = 0; of < 8; ++of) {
            const int half = of / 4, k = of % 4;
            const int row = (row_part * rows + i) * Plan::tile + lane / 4 * 2 + k / 2,
                      column = (column_part * columns + j) * Plan::tile + (lane % 4 * 2 + k % 2) * 2 + half;
            if (row < p.rows && column < p.columns)
              all[turn * p.weights() + (p.rows_are_dy ? row * p.columns + column : column * p.rows + row)] =
                  sums[i][j][half][k];
          }
    __syncthreads();
    for (int i = thread; i < p.weights(); i += Plan::threads) {
      float total = 0;
      for (int of_turn = 0; of_turn < p.turns; ++of_turn) total += all[of_turn * p.weights() + i];
      partial[int64_t{blockIdx.x} * p.weights() + i] = total;
    }
  } else {
    __trap();
  }
}

}  // namespace

cudaError_t pointwise_chunks_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream) {
  const Plan p(pixels_of(sizes), sizes.x_channels, sizes.y_channels);
  auto* partial = static_cast<float*>(workspace);
  const auto bytes = static_cast<size_t>(p.shared_bytes());
  return with_16_bits(type, [&]<typename T>(T*) {
    const auto* rows = static_cast<const T*>(p.rows_are_dy ? dy : x);
    const auto* columns = static_cast<const T*>(p.rows_are_dy ? x : dy);
    const auto run = [&](auto kernel) {
      if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
      kernel<<<static_cast<unsigned>(p.splits), Plan::threads, bytes, stream>>>(partial, rows, columns, p);
      return cudaGetLastError();
    };
    const auto run_rows = [&]<int of_warp>(std::integral_constant<int, of_warp>) {
      return p.warp_columns == 1   ? run(pointwise_chunks_dw_kernel<T, of_warp, 1>)
             : p.warp_columns == 2 ? run(pointwise_chunks_dw_kernel<T, of_warp, 2>)
                                   : run(pointwise_chunks_dw_kernel<T, of_warp, 3>);
    };
    const cudaError_t error =
        p.warp_rows == 2 ? run_rows(std::integral_constant<int, 2>()) : run_rows(std::integral_constant<int, 4>());
    if (error != cudaSuccess) return error;
    return sum_parts(to, dw, partial, p.splits, p.weights(), stream);
  });
}

}  // namespace plimsoll::cuda
