#include "kernels/cuda/conv/depthwise.h"

#include "kernels/cuda/common/early_launch.cuh"
#include "kernels/cuda/conv/depthwise_planes.cuh"
#include "kernels/cuda/conv/depthwise_turned.cuh"
#include "kernels/cuda/conv/sum_parts.h"

// Depthwise conv_dw on the matrix units, pixels as they lie in memory. A product serves two channels of a row of x: its
// left operand has 16 pixels of 8 rows of dy, each row once for either channel, and its right one has as many pixels of
// x from each of 8 distances on. So all its sums but those of one row and one distance are of 7 x 7 taps. Pixels of the
// other channel are zeros, which a sparse operand leaves out. Rows come by the copy engine while others are multiplied;
// x and dy move once, but for the rims of tiles and the rows between two shares.

namespace plimsoll::cuda {
namespace {

using Plan = DepthwiseSparseWeights;

// Of the 504 that three threads, one of each warpgroup, have together.
constexpr int computing_registers = 232, copying_registers = 40;
constexpr int product_vectors = 4;  // of a thread for an operand

// Steps of a block that go down the same two tiles. The first needs rows of dy of as many stages as `span`, of which
// those before its own have no rows of x, and those above dy are not made.
struct SparseSteps {
  int first, end;          // steps of the block that are still to be made
  int tile, x_row, count;  // the first row of x

  __device__ SparseSteps(const Plan& p) {
    const int split = static_cast<int>(blockIdx.x) / p.channel_blocks;
    first = static_cast<int>(p.steps * split / p.splits), end = static_cast<int>(p.steps * (split + 1) / p.splits);
    find(p);
  }
  __device__ bool is_there() const { return first < end; }
  __device__ void find(const Plan& p) {
    Digits digits{static_cast<unsigned>(first)};
    const int pair = digits.take(p.row_pairs);
    tile = static_cast<int>(digits.rest) * Plan::tiles_at_once;
    x_row = pair * Plan::step_rows;
    count = min(p.row_pairs - pair, end - first);
  }
  __device__ void next(const Plan& p) {
    first += count;
    if (is_there()) find(p);
  }
  // The first row of dy that a step meets.
  __device__ int dy_row(const Plan& p, int step) const {
    return (x_row / Plan::step_rows + step) * p.dy_rows + p.first_dy;
  }
};

template <int kernel>
constexpr int span = (kernel + 1) / Plan::step_rows;
template <int stride>
constexpr int dy_rows = Plan::step_rows / stride;

struct SparseWeightMemory {
  uint8_t *zeros, *stages;
  Barrier *full, *empty;

  __device__ SparseWeightMemory(void* shared, const Plan& p) {
    constexpr uint32_t border = Plan::border_bytes;
    zeros = static_cast<uint8_t*>(shared) + (border - shared_address(shared) % border) % border;
    stages = zeros + p.zero_bytes;
    full = reinterpret_cast<Barrier*>(stages + p.stages * p.stage_bytes);
    empty = full + p.stages;
  }
  // By one thread.
  __device__ void set_up_barriers(const Plan& p) const {
    for (int i = 0; i < p.stages; ++i) set_up_barrier(full + i, 1), set_up_barrier(empty + i, Plan::warps);
    show_barriers_to_copies();
  }
  // By the threads that compute.
  __device__ void write_zeros(const Plan& p) const {
    constexpr int turn = Plan::turn * Plan::pixel_bytes / 16;
    const int thread = static_cast<int>(threadIdx.x);
    const auto clear = [&](uint8_t* first, int i) { reinterpret_cast<uint4*>(first)[i] = uint4{0, 0, 0, 0}; };
    for (int i = thread; i < p.zero_bytes / 16; i += Plan::computing_threads) clear(zeros, i);
    for (int i = thread; i < p.stages * turn; i += Plan::computing_threads)
      for (int row = 0; row <= Plan::step_rows; ++row)
        clear(stages + i / turn * p.stage_bytes + (p.first_zero + row * p.x_row) * Plan::pixel_bytes, i % turn);
  }
};

// The warps that copy go on at once, those that compute wait for each other's zeros, and for the barriers.
__device__ inline void arrive_with_barriers() {
  __syncwarp();
  asm volatile("bar.arrive 1, %0;" ::"n"(Plan::threads) : "memory");
}
__device__ inline void wait_for_barriers() { asm volatile("bar.sync 1, %0;" ::"n"(Plan::threads) : "memory"); }

// By one thread: asks for the rows of all stages.
template <int kernel, int stride>
__device__ void copy_stages(const SparseWeightMemory& memory, const CUtensorMap& x, const CUtensorMap& dy, int channel,
                            const Plan& p) {
  fetch_map(x), fetch_map(dy);
  constexpr int of_pixel = Plan::tiles_at_once * Plan::pixel_bytes;
  const int x_bytes = p.images * p.across.pixels * of_pixel, dy_bytes = p.images * p.width * of_pixel;
  RingPlace load;
  for (SparseSteps at(p); at.is_there(); at.next(p)) {
    const SparseTilePlace first(p, at.tile), second(p, at.tile + 1);
    for (int stage = p.stages_above(at.x_row); stage < at.count + span<kernel> - 1; ++stage) {
      const int step = stage - (span<kernel> - 1), x_row = at.x_row + step * Plan::step_rows;
      const int dy_row = at.dy_row(p, stage);
      uint8_t* const pixels = memory.stages + load.stage * p.stage_bytes;
      Barrier* const full = memory.full + load.stage;
      const bool has_x = step >= 0;  // a row behind the last one comes as zeros
      const auto has_dy = [&](int row) {
        return static_cast<unsigned>(dy_row + row) < static_cast<unsigned>(p.out[0]);
      };
      const auto copy = [&](const CUtensorMap& map, int pixel, int to_second, int step_across, int left, int row) {
        uint8_t* const to = pixels + pixel * Plan::pixel_bytes;
        copy_box(to, map, channel, first.column * step_across + left, row, first.image, full);
        copy_box(to + to_second * Plan::pixel_bytes, map, channel, second.column * step_across + left, row,
                 second.image, full);
      };
      int bytes = 0;
#pragma unroll
      for (int row = 0; row < Plan::step_rows; ++row)
        bytes += (has_x ? x_bytes : 0) + (row < dy_rows<stride> && has_dy(row) ? dy_bytes : 0);
      wait_at(memory.empty + load.stage, load.parity ^ 1);
      arrive_with_copies(full, bytes);
#pragma unroll
      for (int row = 0; row < Plan::step_rows; ++row) {
        if (row < dy_rows<stride> && has_dy(row)) copy(dy, row * p.dy_row, p.second_dy, 1, 0, dy_row + row);
        if (has_x) copy(x, p.first_x + row * p.x_row, p.second_x, stride, p.across.first, x_row + row);
      }
      load.advance(p.stages);
    }
  }
}

// Bytes from a stage to the units that a thread reads for the products of a row: of dy in the row that is the thread's,
// which without a stride is the second one of a stage for every other; of x from the distance on that is the thread's.
// Pixels of both are in such an order that terms meet, and that 8 threads that read pixels of x at once are at
// different banks.
template <int stride>
struct SparseWeightPlaces {
  int dy[Plan::part_products][product_vectors], x[Plan::part_products][product_vectors];

  __device__ SparseWeightPlaces(const Plan& p, int part, int unit) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads, line = lane / 4;
#pragma unroll
    for (int product = 0; product < Plan::part_products; ++product)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int place = 2 * (part * Plan::part_products + product) + half;
        const SparseStrip strip(p, place / Plan::tile_strips, place % Plan::tile_strips);
        const int first_dy = strip.tile * p.second_dy + strip.image * p.width,
                  first_x = p.first_x + strip.tile * p.second_x + strip.image * p.across.pixels;
#pragma unroll
        for (int i = 0; i < product_vectors / 2; ++i) {
          const int by_fours = 4 * i + lane % 4;
          const int of_dy = stride == 1 ? by_fours : lane % 4 * 2 + i;
          const int of_x = stride == 1 ? 2 * i + lane % 4 / 2 + lane % 2 * 4 : by_fours;
          const int column = strip.strip * Plan::strip + of_dy;
          const bool is_result = strip.valid && column < p.width;
          dy[product][2 * half + i] = place_in_pixel(
              is_result ? line % dy_rows<stride> * p.dy_row + first_dy + column : p.first_zero + column % Plan::turn,
              unit);
          const int from = (strip.strip * Plan::strip + of_x) * stride + line + p.across.shift;
          const bool inside = strip.valid && from >= 0 && from < p.across.pixels;
          x[product][2 * half + i] =
              place_in_pixel(inside ? first_x + from : p.first_zero + p.x_row + (from & (Plan::turn - 1)), unit);
        }
      }
  }
};

// dy, x: of the thread's row of dy, and of the step's stage
template <typename T, int stride>
__device__ void add_step(SparseWeightSums& sums, uint32_t dy, uint32_t x, const SparseWeightPlaces<stride>& places,
                         const Plan& p) {
#pragma unroll
  for (int product = 0; product < Plan::part_products; ++product) {
    uint4 vectors[product_vectors];
#pragma unroll
    for (int i = 0; i < product_vectors; ++i) vectors[i] = load_unit(dy + places.dy[product][i]);
    LeftPairs left;
    pair_terms(left, vectors);
#pragma unroll
    for (int row = 0; row < Plan::step_rows; ++row) {
#pragma unroll
      for (int i = 0; i < product_vectors; ++i)
        vectors[i] = load_unit(x + places.x[product][i] + row * p.x_row * Plan::pixel_bytes);
      add_products<T>(sums[row], left, vectors);
    }
  }
}

// Calls add(dy, x) for all steps of a block.
template <int kernel, int stride, typename Add>
__device__ void for_each_step(const SparseWeightMemory& memory, const Plan& p, Add add) {
  constexpr int before = span<kernel> - 1;  // stages of dy before a step's own
  const int line = static_cast<int>(threadIdx.x) % warp_threads / 4;
  const uint32_t stages = shared_address(memory.stages), zeros = shared_address(memory.zeros);
  int own = min(line / dy_rows<stride>, before);  // stage of the thread's row of dy
  RingPlace load, oldest;
  const auto pass_stage = [&](bool is_there) {
    if (++own == p.stages) own = 0;
    if (!is_there) return;
    arrive_as_warp_at(memory.empty + oldest.stage);
    oldest.advance(p.stages);
  };
  for (SparseSteps at(p); at.is_there(); at.next(p)) {
    const int above = p.stages_above(at.x_row);
    own -= above;
    if (own < 0) own += p.stages;
    for (int i = above; i < before; ++i) {
      wait_at(memory.full + load.stage, load.parity);
      load.advance(p.stages);
    }
    for (int step = 0; step < at.count; ++step) {
      const int dy_row = at.dy_row(p, step) + line;
      const bool meets =
          line < span<kernel> * dy_rows<stride> && static_cast<unsigned>(dy_row) < static_cast<unsigned>(p.out[0]);
      wait_at(memory.full + load.stage, load.parity);
      add(meets ? stages + own * p.stage_bytes : zeros, stages + load.stage * p.stage_bytes);
      load.advance(p.stages);
      pass_stage(step >= above);
    }
    for (int i = 0; i < before; ++i) pass_stage(at.count + i >= above);
  }
}

template <typename T, int kernel, int stride, bool turns>
__device__ void add_steps(SparseWeightSums& sums, const SparseWeightMemory& memory, int part, int unit, const Plan& p) {
  if constexpr (turns) {
    const TurnedPlaces places(p, part, unit);
    TurnedSums turned = {};
    for_each_step<kernel, stride>(memory, p,
                                  [&](uint32_t dy, uint32_t x) { add_turned_step<T>(turned, dy, x, places, p); });
    join_turns(sums, turned);
  } else {
    const SparseWeightPlaces<stride> places(p, part, unit);
    for_each_step<kernel, stride>(memory, p,
                                  [&](uint32_t dy, uint32_t x) { add_step<T, stride>(sums, dy, x, places, p); });
  }
}

template <typename T, int kernel, int stride, bool turns>
__global__ void __launch_bounds__(Plan::threads, 1)
    depthwise_sparse_dw_kernel(float* __restrict__ partial, const __grid_constant__ CUtensorMap x,
                               const __grid_constant__ CUtensorMap dy,
                               const __grid_constant__ DepthwiseSparseWeights p) {
  if constexpr (has_warpgroups) {
    let_next_launch_begin();
    extern __shared__ uint8_t shared[];
    constexpr int taps = kernel * kernel;
    const SparseWeightMemory memory(shared, p);
    auto* all = reinterpret_cast<float*>(memory.zeros);  // in the end sums of each part and row of a step
    const int thread = static_cast<int>(threadIdx.x), warp = thread / warp_threads, lane = thread % warp_threads;
    const int channel = static_cast<int>(blockIdx.x) % p.channel_blocks * Plan::block_channels;
    // Rows of pixels are asked for before the zeros are there.
    if (thread >= Plan::computing_threads) {
      give_registers<copying_registers>();
      if (thread == Plan::computing_threads) memory.set_up_barriers(p);
      arrive_with_barriers();
      if (thread == Plan::computing_threads) copy_stages<kernel, stride>(memory, x, dy, channel, p);
      __syncthreads();
    } else {
      take_registers<computing_registers>();
      memory.write_zeros(p);
      wait_for_barriers();
      const int unit = warp % Plan::units, part = warp / Plan::units;
      SparseWeightSums sums = {};
      add_steps<T, kernel, stride, turns>(sums, memory, part, unit, p);
      __syncthreads();
#pragma unroll
      for (int row = 0; row < Plan::step_rows; ++row) {
        const int down = p.tap_down(row, lane / 4);
#pragma unroll
        for (int pair = 0; pair < unit_pairs; ++pair)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int of = unit * unit_channels + 2 * pair + i / 2, across = lane % 4 * 2 + i % 2;
            if (down >= 0 && down < kernel && across < kernel)
              all[((part * Plan::step_rows + row) * Plan::block_channels + of) * taps + down * kernel + across] =
                  sums[row][pair][i];
          }
      }
    }
    __syncthreads();
    const int split = static_cast<int>(blockIdx.x) / p.channel_blocks;
    const int count = min(Plan::block_channels, p.channels - channel) * taps;
    for (int i = thread; i < count; i += Plan::threads) {
      const int down = i % taps / kernel;
      float total = 0;
#pragma unroll
      for (int of_part = 0; of_part < Plan::parts * Plan::step_rows; ++of_part) {
        // With a stride of 2 either row of x of a step meets every other row of taps.
        if (stride == 2 && (p.tap_down(of_part % Plan::step_rows, 0) - down) % 2 != 0) continue;
        total += all[of_part * Plan::block_channels * taps + i];
      }
      partial[(int64_t{split} * p.channels + channel) * taps + i] = total;
    }
  } else {
    __trap();
  }
}

}  // namespace

cudaError_t depthwise_sparse_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream) {
  const DepthwiseSparseWeights p(sizes);
  auto* partial = static_cast<float*>(workspace);
  CUtensorMap of_x, of_dy;
  constexpr int channels = DepthwiseSparseWeights::block_channels;
  const ImageBoxes x_boxes{
      {sizes.batch, p.in[0], p.in[1], p.channels}, {p.images, 1, p.across.pixels}, {1, 1}, channels};
  const ImageBoxes dy_boxes{{sizes.batch, p.out[0], p.out[1], p.channels}, {p.images, 1, p.width}, {1, 1}, channels};
  if (const cudaError_t error = map_image(of_x, x, x_boxes)) return error;
  if (const cudaError_t error = map_image(of_dy, dy, dy_boxes)) return error;
  const auto bytes = static_cast<size_t>(p.shared_bytes());
  return with_16_bits(type, [&]<typename T>(T*) {
    const cudaError_t error = with_kernel_size(p.kernel, [&](auto size) {
      constexpr int taps = decltype(size)::value;
      const auto run = [&](auto kernel) {
        if (const cudaError_t refused = allow_shared(kernel, bytes)) return refused;
        kernel<<<static_cast<unsigned>(p.blocks()), Plan::threads, bytes, stream>>>(partial, of_x, of_dy, p);
        return cudaGetLastError();
      };
      if constexpr (taps > 3)
        if (p.turns()) return run(depthwise_sparse_dw_kernel<T, taps, 1, true>);
      if (p.stride == 1) return run(depthwise_sparse_dw_kernel<T, taps, 1, false>);
      if constexpr (taps < 7) return run(depthwise_sparse_dw_kernel<T, taps, 2, false>);
      return cudaErrorInvalidValue;
    });
    if (error != cudaSuccess) return error;
    return sum_parts(to, dw, partial, p.splits, sizes.weights(), stream);
  });
}

}  // namespace plimsoll::cuda
