#include "kernels/cuda/conv/depthwise_images.cuh"

#include "kernels/cuda/common/block_cluster.cuh"
#include "kernels/cuda/common/early_launch.cuh"
#include "kernels/cuda/conv/depthwise.h"
#include "kernels/cuda/conv/sum_parts.h"

// Depthwise conv_dw of whole small images on the matrix units. A product serves two channels: its left operand has 8
// columns of two rows of dy, its right one 8 columns of two rows of x, and its terms are 8 images in each of both rows.
// So it has the products of all pairs of columns, of which each tap adds up a diagonal in the end. Rows that are as far
// apart share their sums. x and dy move once.

namespace plimsoll::cuda {
namespace {

using Plan = DepthwiseImageWeights;

struct ImagePairMemory {
  uint8_t* pixels;  // of a slot first those of x
  Barrier *full, *empty;

  __device__ ImagePairMemory(void* shared, const Plan& p) {
    pixels = bordered(shared);
    full = reinterpret_cast<Barrier*>(pixels + p.slots * 2 * Plan::slot_bytes);
    empty = full + p.slots;
  }
};

// By one thread. Images behind the last of the share are asked for behind the last one of all: they come as zeros.
__device__ inline void copy_images(const ImagePairMemory& memory, const CUtensorMap& x, const CUtensorMap& dy,
                                   const ImageShare& share, const Plan& p) {
  fetch_map(x), fetch_map(dy);
  RingPlace at;
  for (int number = 0; number < share.slots; ++number) {
    Barrier* const full = memory.full + at.stage;
    uint8_t* const slot = memory.pixels + at.stage * 2 * Plan::slot_bytes;
    wait_at(memory.empty + at.stage, at.parity ^ 1);
    arrive_with_copies(full, 2 * Plan::slot_images * Plan::image_bytes);
    for (int i = 0; i < Plan::slot_images; ++i) {
      const int image = i < share.images_of(number) ? share.first_of(number) + i : p.batch;
      uint8_t* const to = slot + i * Plan::pitch * Plan::pixel_bytes;
      copy_box(to, x, share.channel, 0, 0, image, full);
      copy_box(to + Plan::slot_bytes, dy, share.channel, 0, 0, image, full);
    }
    at.advance(p.slots);
  }
}

// A warp's sums, by rows of taps.
template <int tap_rows>
using ColumnSums = float[tap_rows][channel_pairs][4];

// Adds a warp's products of 8 images.
template <typename T, int tap_rows>
__device__ void add_images(ColumnSums<tap_rows>& sums, uint32_t x, uint32_t dy, const Plan& p) {
  constexpr int pad = tap_rows / 2, rows = Plan::side;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % warp_threads, warp = thread / warp_threads;
  uint32_t of_dy[2], of_x[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    of_dy[i] = dy + place_in_slot(lane % 4 * 2 + i, lane / 4, warp);
    of_x[i] = x + place_in_slot(4 * i + lane % 4, lane / 4, warp);
  }
  uint32_t left[row_pairs][channel_pairs][4];
#pragma unroll
  for (int row = 0; row < rows; ++row) {
    const uint2 first = load_channels(of_dy[0] + row * image_row_bytes),
                second = load_channels(of_dy[1] + row * image_row_bytes);
    uint32_t(&of_rows)[channel_pairs][4] = left[row / 2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const unsigned selector = i == 0 ? 0x5410 : 0x7632;
      of_rows[0][row % 2 * 2 + i] = __byte_perm(first.x, second.x, selector);
      of_rows[1][row % 2 * 2 + i] = __byte_perm(first.y, second.y, selector);
    }
  }
  uint2 own[2] = {}, next[2] = {load_channels(of_x[0]), load_channels(of_x[1])};
#pragma unroll
  for (int row = -1; row < rows; ++row) {  // of x, with that below it
    if (row >= p.image[0]) break;
    uint32_t right[channel_pairs][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      right[0][i] = moved_word(own[i].x, p.all_bytes), right[1][i] = moved_word(own[i].y, p.all_bytes);
      right[0][2 + i] = moved_word(next[i].x, p.all_bytes), right[1][2 + i] = moved_word(next[i].y, p.all_bytes);
      own[i] = next[i];
      next[i] = row + 2 < rows ? load_channels(of_x[i] + (row + 2) * image_row_bytes) : uint2{0, 0};
    }
#pragma unroll
    for (int pair_row = 0; pair_row < row_pairs; ++pair_row) {
      const int taps = row - 2 * pair_row + pad;
      if (taps < 0 || taps >= tap_rows) continue;
#pragma unroll
      for (int pair = 0; pair < channel_pairs; ++pair)
        multiply_add_sparse<T>(sums[taps][pair], left[pair_row][pair], right[pair], sums[taps][pair]);
    }
  }
}

// Adds up the diagonals of a channel's row of taps; store(tap, sum) takes a sum for each tap across.
template <typename Store>
__device__ void add_diagonals(const float* columns, const Plan& p, Store store) {
  constexpr int side = Plan::side;
  float sums[2 * side - 1] = {};  // from a column of dy to one of x
#pragma unroll
  for (int column = 0; column < side; ++column)
#pragma unroll
    for (int i = 0; i < side; i += 4) {
      const float4 of_x = *reinterpret_cast<const float4*>(columns + column * side + i);
      float* const to = sums + i - column + side - 1;
      to[0] += of_x.x, to[1] += of_x.y, to[2] += of_x.z, to[3] += of_x.w;
    }
#pragma unroll
  for (int i = 0; i < 2 * side - 1; ++i)
    if (const int tap = i - (side - 1) + p.pad[1]; tap >= 0 && tap < p.kernel[1]) store(tap, sums[i]);
}

__device__ inline float load_from_block(int block, const float* here) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address_in(block, here)) : "memory");
  return value;
}

// A warp's sums of all images of the share.
template <typename T, int tap_rows>
__device__ void add_share(ColumnSums<tap_rows>& sums, const ImagePairMemory& memory, const ImageShare& share,
                          const Plan& p) {
  RingPlace at;
  for (int number = 0; number < share.slots; ++number) {
    wait_at(memory.full + at.stage, at.parity);
    const uint32_t slot = shared_address(memory.pixels) + at.stage * 2 * Plan::slot_bytes;
    add_images<T, tap_rows>(sums, slot, slot + Plan::slot_bytes, p);
    arrive_as_warp_at(memory.empty + at.stage);
    at.advance(p.slots);
  }
}

// Writes a warp's sums to columns [channels, rows of taps, columns of dy, columns of x]: thread 4 g + t has columns 2 t
// and 2 t + 1 of x with column g of dy.
template <int tap_rows>
__device__ void leave_columns(float* columns, const ColumnSums<tap_rows>& sums) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % warp_threads, warp = thread / warp_threads;
#pragma unroll
  for (int row = 0; row < tap_rows; ++row)
#pragma unroll
    for (int i = 0; i < Plan::warp_channels; ++i) {
      const float* of = sums[row][i / 2] + i % 2 * 2;
      const int line = (warp * Plan::warp_channels + i) * tap_rows + row;
      *reinterpret_cast<float2*>(columns + line * Plan::sums_pitch + lane * 2) = float2{of[0], of[1]};
    }
}

// Makes a block's sums by taps of those by columns.
template <int tap_rows>
__device__ void add_columns(float* to, const float* columns, int channels, const Plan& p) {
  const int rows_above = (tap_rows - p.kernel[0]) / 2;
  for (int line = static_cast<int>(threadIdx.x); line < channels * tap_rows; line += Plan::computing_threads) {
    const int channel = line / tap_rows, down = line - channel * tap_rows - rows_above;
    if (down < 0 || down >= p.kernel[0]) continue;
    add_diagonals(columns + line * Plan::sums_pitch, p,
                  [&](int tap, float sum) { to[channel * p.taps() + down * p.kernel[1] + tap] = sum; });
  }
}

// Adds the sums of a cluster's blocks up, of which each block adds a part; all threads call it.
template <typename To>
__device__ void add_cluster(To* dw, const float* block_sums, int count, int split, const Plan& p) {
  const int thread = static_cast<int>(threadIdx.x), step = p.splits * Plan::computing_threads;
  wait_for_cluster();
  if (thread < Plan::computing_threads)
    for (int i = split * Plan::computing_threads + thread; i < count; i += step) {
      float total = 0;
      for (int block = 0; block < p.splits; ++block) total += load_from_block(block, block_sums + i);
      dw[i] = narrow<To>(total);
    }
  wait_for_cluster();  // until all have read what is here
}

// partial: of all blocks, where they leave parts; dw: where they are joined.
template <typename T, typename To, int tap_rows>
__global__ void __launch_bounds__(Plan::threads, 1)
    depthwise_images_dw_kernel(float* __restrict__ partial, To* __restrict__ dw, const __grid_constant__ CUtensorMap x,
                               const __grid_constant__ CUtensorMap dy, const __grid_constant__ Plan p) {
  if constexpr (has_warpgroups) {
    let_next_launch_begin();
    extern __shared__ uint8_t shared[];
    const ImagePairMemory memory(shared, p);
    const ImageShare share(p);
    const int thread = static_cast<int>(threadIdx.x), channels = min(Plan::block_channels, p.channels - share.channel);
    if (thread == Plan::computing_threads) {
      for (int i = 0; i < p.slots; ++i)
        set_up_barrier(memory.full + i, 1), set_up_barrier(memory.empty + i, Plan::warps);
      show_barriers_to_copies();
    }
    __syncthreads();
    auto* const columns = reinterpret_cast<float*>(memory.pixels);  // in the end, with the block's sums behind them
    float* const block_sums = columns + Plan::block_channels * tap_rows * Plan::sums_pitch;
    const int64_t first_weight = int64_t{share.channel} * p.taps();
    if (thread >= Plan::computing_threads) {
      give_registers<copying_registers>();
      if (thread == Plan::computing_threads) copy_images(memory, x, dy, share, p);
      __syncthreads();
      __syncthreads();
    } else {
      take_registers<computing_registers>();
      ColumnSums<tap_rows> sums = {};
      add_share<T, tap_rows>(sums, memory, share, p);
      __syncthreads();
      leave_columns<tap_rows>(columns, sums);
      __syncthreads();
      float* const part = partial + int64_t{share.split} * p.channels * p.taps() + first_weight;
      add_columns<tap_rows>(p.joined ? block_sums : part, columns, channels, p);
    }
    if (p.joined) add_cluster(dw + first_weight, block_sums, channels * p.taps(), share.split, p);
  } else {
    __trap();
  }
}

}  // namespace

cudaError_t depthwise_images_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream) {
  const Plan p(sizes);
  auto* partial = static_cast<float*>(workspace);
  CUtensorMap of_x, of_dy;
  const ImageBoxes boxes{
      {sizes.batch, p.image[0], p.image[1], p.channels}, {1, Plan::side, Plan::side}, {1, 1}, Plan::block_channels};
  if (const cudaError_t error = map_image(of_x, x, boxes)) return error;
  if (const cudaError_t error = map_image(of_dy, dy, boxes)) return error;
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {1, static_cast<unsigned>(p.splits), 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(p.channel_blocks), static_cast<unsigned>(p.splits));
  config.blockDim = Plan::threads;
  config.dynamicSmemBytes = static_cast<size_t>(p.shared_bytes());
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = p.joined && p.splits > 1 ? 1 : 0;
  const cudaError_t error = with_16_bits(type, [&]<typename T>(T*) {
    return with_tap_rows(p.tap_rows, [&](auto rows) {
      const auto run = [&]<typename To>(To* sums) {
        const auto kernel = depthwise_images_dw_kernel<T, To, decltype(rows)::value>;
        if (const cudaError_t refused = allow_shared(kernel, config.dynamicSmemBytes)) return refused;
        return cudaLaunchKernelEx(&config, kernel, partial, sums, of_x, of_dy, p);
      };
      return to == Scalar::F32 ? run(static_cast<float*>(dw)) : run(static_cast<T*>(dw));
    });
  });
  if (error != cudaSuccess || p.joined) return error;
  return sum_parts(to, dw, partial, p.splits, sizes.weights(), stream);
}

}  // namespace plimsoll::cuda
