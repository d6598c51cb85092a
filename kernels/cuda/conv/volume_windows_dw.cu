#include "kernels/cuda/common/early_launch.cuh"
#include "kernels/cuda/conv/sum_parts.h"
#include "kernels/cuda/conv/volume_windows.cuh"
#include "kernels/cuda/conv/volumes.h"

// Depthwise conv_dw over volumes on the matrix units, for pixels of whole units of 8 channels. A product serves two
// channels: its left operand has 8 columns of dy, its right one 8 columns of x, and its terms are 8 lines, of which
// those of x lie a row of taps further. So it has the products of all pairs of columns, of which each tap adds up a
// diagonal in the end. Each plane of x comes once and meets the three planes of dy around it.

namespace plimsoll::cuda {
namespace {

using Plan = VolumeWindowWeights;
constexpr int taps = Plan::taps, all_taps = Plan::all_taps, side = Plan::side;

struct WindowPairMemory {
  uint8_t *x, *dy;
  RingBarriers x_ring, dy_ring;

  __device__ WindowPairMemory(void* shared, const Plan& p) {
    x = bordered<Plan::border_bytes>(shared);
    dy = x + p.stages * p.x_stage_bytes;
    x_ring = {reinterpret_cast<Barrier*>(dy + p.dy_stages * p.dy_stage_bytes), p.stages};
    dy_ring = {x_ring.end(), p.dy_stages};
  }
  // Lines of dy that no copy fills are zeros, and those of x that meet them alone are numbers.
  __device__ void clear(const Plan& p) const {
    const auto clear_stages = [](uint8_t* first, int stages, int stage_bytes, int copied_bytes) {
      for (int stage = 0; stage < stages; ++stage)
        for (int i = copied_bytes + static_cast<int>(threadIdx.x) * 16; i < stage_bytes; i += Plan::threads * 16)
          *reinterpret_cast<uint4*>(first + stage * stage_bytes + i) = uint4{0, 0, 0, 0};
    };
    clear_stages(x, p.stages, p.x_stage_bytes, p.x_bytes);
    clear_stages(dy, p.dy_stages, p.dy_stage_bytes, p.dy_bytes);
  }
};

// By one thread: asks for planes of x, and for those of dy that they meet.
__device__ inline void copy_planes(const WindowPairMemory& memory, const CUtensorMap& x, const CUtensorMap& dy,
                                   const Plan& p) {
  RingPlace load_x, load_dy;
  for (VolumeColumns at(p, p.x[0]); at.is_there(); at.next(p)) {
    for (int plane = at.begin - (taps - 1); plane < at.end; ++plane) {
      const int dy_plane = plane + p.pad[0];
      const bool is_dy_plane = is_plane_of(p.dy, dy_plane);
      wait_at(memory.dy_ring.used(load_dy.stage), load_dy.parity ^ 1);
      arrive_with_copies(memory.dy_ring.copied(load_dy.stage), p.dy_bytes);
      copy_box(memory.dy + load_dy.stage * p.dy_stage_bytes, dy, first_channel(p), at.column,
               is_dy_plane ? at.line : p.dy[1], is_dy_plane ? at.image * p.dy[0] + dy_plane : 0,
               memory.dy_ring.copied(load_dy.stage));
      load_dy.advance(p.dy_stages);
      if (plane < at.begin) continue;
      wait_at(memory.x_ring.used(load_x.stage), load_x.parity ^ 1);
      arrive_with_copies(memory.x_ring.copied(load_x.stage), p.x_bytes);
      copy_box(memory.x + load_x.stage * p.x_stage_bytes, x, first_channel(p), at.column + p.first_pixel,
               at.line - p.pad[1], at.image * p.x[0] + plane, memory.x_ring.copied(load_x.stage));
      load_x.advance(p.stages);
    }
  }
}

// Columns of a window in the order of a product's rows and columns, with which two neighbours are half a window apart,
// and its lines in that of terms: so threads that read at once are at different banks.
__device__ inline int column_of(int place) { return place / 2 + place % 2 * (side / 2); }

// A warp's sums, by planes and rows of taps.
using WindowSums = float[taps][taps][unit_pairs][4];

template <typename T, int windows>
class WindowAdder {
 public:
  __device__ WindowAdder(const Plan& p, int unit) : all_bytes_(p.all_bytes) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads, t = lane % 4, column = column_of(lane / 4);
#pragma unroll
    for (int window = 0; window < windows; ++window) {
      const bool has_result = p.has_result(window, column);
      has_result_[window] = has_result ? ~0u : 0;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int x_line = i == 0 ? t : side / 2 + (t ^ 1), dy_line = 2 * t + (t < 2 ? i : 1 - i);
#pragma unroll
        for (int row = 0; row < taps; ++row)
          x_[window][row][i] = place_of_unit((x_line + row) * p.box_pixels + window * Plan::step + column, unit);
        const int of_line = has_result ? p.column_of(window, column) : 0;
        dy_[window][i] = place_of_unit(dy_line * p.dy_pixels + of_line, unit);
      }
    }
  }
  // x, dy: of a plane of x, and of those of dy that its planes of taps meet.
  __device__ void add(WindowSums& sums, uint32_t x, const uint32_t (&dy)[taps]) const {
#pragma unroll
    for (int window = 0; window < windows; ++window) {
      uint4 of_x[2];
      load_x(of_x, x, window, 0);
      uint32_t left[taps][unit_pairs][2];
#pragma unroll
      for (int deep = 0; deep < taps; ++deep) {
        const uint4 first = load_unit(dy[deep] + dy_[window][0]), second = load_unit(dy[deep] + dy_[window][1]);
#pragma unroll
        for (int pair = 0; pair < unit_pairs; ++pair)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            left[deep][pair][i] = __byte_perm(pair_of(first, pair), pair_of(second, pair), i == 0 ? 0x5410 : 0x7632) &
                                  has_result_[window];
      }
#pragma unroll
      for (int row = 0; row < taps; ++row) {
        uint32_t right[unit_pairs][2];
#pragma unroll
        for (int pair = 0; pair < unit_pairs; ++pair)
#pragma unroll
          for (int i = 0; i < 2; ++i) right[pair][i] = moved_word(pair_of(of_x[i], pair), all_bytes_);
        if (row + 1 < taps) load_x(of_x, x, window, row + 1);
#pragma unroll
        for (int deep = 0; deep < taps; ++deep)
#pragma unroll
          for (int pair = 0; pair < unit_pairs; ++pair)
            multiply_add_half_sparse<T>(sums[deep][row][pair], left[deep][pair], right[pair]);
      }
    }
  }

 private:
  uint32_t x_[windows][taps][2], dy_[windows][2];  // bytes from a stage on
  uint32_t has_result_[windows], all_bytes_;

  __device__ void load_x(uint4 (&to)[2], uint32_t x, int window, int row) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) to[i] = load_unit(x + x_[window][row][i]);
  }
};

template <typename T, int windows>
__device__ void add_planes(WindowSums& sums, const WindowPairMemory& memory, int unit, const Plan& p) {
  const WindowAdder<T, windows> adder(p, unit);
  RingPlace load_x, load_dy, oldest;
  const auto pass_dy = [&] {
    arrive_as_warp_at(memory.dy_ring.used(oldest.stage));
    oldest.advance(p.dy_stages);
  };
  for (VolumeColumns at(p, p.x[0]); at.is_there(); at.next(p)) {
    for (int i = 0; i < taps - 1; ++i) {
      wait_at(memory.dy_ring.copied(load_dy.stage), load_dy.parity);
      load_dy.advance(p.dy_stages);
    }
#pragma unroll 1
    for (int plane = at.begin; plane < at.end; ++plane) {
      wait_at(memory.dy_ring.copied(load_dy.stage), load_dy.parity);
      wait_at(memory.x_ring.copied(load_x.stage), load_x.parity);
      uint32_t dy[taps];
#pragma unroll
      for (int deep = 0; deep < taps; ++deep) {
        const int stage = load_dy.stage - deep, own = stage < 0 ? stage + p.dy_stages : stage;
        dy[deep] = shared_address(memory.dy) + own * p.dy_stage_bytes;
      }
      adder.add(sums, shared_address(memory.x) + load_x.stage * p.x_stage_bytes, dy);
      arrive_as_warp_at(memory.x_ring.used(load_x.stage));
      load_x.advance(p.stages);
      load_dy.advance(p.dy_stages);
      pass_dy();
    }
    for (int i = 0; i < taps - 1; ++i) pass_dy();
  }
}

// Leaves a warp's sums as [channels, taps, columns of dy].
__device__ inline void leave_sums(float* all, const WindowSums& sums) {
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, column = column_of(lane / 4);
#pragma unroll
  for (int second = 0; second < 2; ++second) {
    const int tap = lane % 4 + second * (side / 2) - column + 1;
    if (tap < 0 || tap >= taps) continue;
    float* const to = all + tap * side + column;
#pragma unroll
    for (int deep = 0; deep < taps; ++deep)
#pragma unroll
      for (int row = 0; row < taps; ++row)
#pragma unroll
        for (int pair = 0; pair < unit_pairs; ++pair)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            to[((2 * pair + i) * all_taps + (deep * taps + row) * taps) * side] = sums[deep][row][pair][2 * i + second];
  }
}

template <typename T, int windows>
__global__ void __launch_bounds__(Plan::threads, 1)
    volume_windows_dw_kernel(float* __restrict__ partial, const __grid_constant__ CUtensorMap x,
                             const __grid_constant__ CUtensorMap dy, const __grid_constant__ Plan p) {
  if constexpr (has_warpgroups) {
    let_next_launch_begin();
    extern __shared__ uint8_t shared[];
    const WindowPairMemory memory(shared, p);
    auto* const all = reinterpret_cast<float*>(memory.x);  // in the end sums of each column of dy
    const int thread = static_cast<int>(threadIdx.x), copying = thread - Plan::computing_threads;
    memory.clear(p);
    if (copying == 0) {
      fetch_map(x), fetch_map(dy);
      memory.x_ring.create(Plan::warps);
      memory.dy_ring.create(Plan::warps);
      show_barriers_to_copies();
    }
    __syncthreads();
    if (copying >= 0) {
      give_registers<window_copying_registers>();
      if (copying == 0) copy_planes(memory, x, dy, p);
      __syncthreads();
    } else {
      take_registers<window_registers>();
      const int unit = thread / warp_threads;
      WindowSums sums = {};
      add_planes<T, windows>(sums, memory, unit, p);
      __syncthreads();
      leave_sums(all + unit * Plan::unit * all_taps * side, sums);
    }
    __syncthreads();
    const int channel = first_channel(p), split = static_cast<int>(blockIdx.x) / p.channel_blocks;
    const int count = min(Plan::box_channels, p.channels - channel) * all_taps;
    for (int i = thread; i < count; i += Plan::threads) {
      const int tap = i % taps;
      float total = 0;
#pragma unroll
      for (int column = 0; column < side; ++column)
        // The first column meets none of the first tap, and the last one none of the last.
        if (!(column == 0 && tap == 0) && !(column == side - 1 && tap == taps - 1)) total += all[i * side + column];
      partial[(int64_t{split} * p.channels + channel) * all_taps + i] = total;
    }
  } else {
    __trap();
  }
}

}  // namespace

cudaError_t volume_windows_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                              const DepthwiseVolumeSizes& sizes, void* workspace, cudaStream_t stream) {
  const auto p = choose_volume_windows<Plan>(sizes);
  auto* partial = static_cast<float*>(workspace);
  CUtensorMap of_x, of_dy;
  if (const cudaError_t error = map_windows(of_x, x, sizes.batch, p.x, p.channels, p.box_lines(), p.box_pixels))
    return error;
  if (const cudaError_t error = map_windows(of_dy, dy, sizes.batch, p.dy, p.channels, p.lines, p.dy_pixels))
    return error;
  const auto bytes = static_cast<size_t>(p.shared_bytes());
  return with_16_bits(type, [&]<typename T>(T*) {
    const auto run = [&](auto kernel) {
      if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
      kernel<<<static_cast<unsigned>(p.blocks()), Plan::threads, bytes, stream>>>(partial, of_x, of_dy, p);
      return cudaGetLastError();
    };
    const cudaError_t error =
        p.windows == 1 ? run(volume_windows_dw_kernel<T, 1>) : run(volume_windows_dw_kernel<T, 2>);
    if (error != cudaSuccess) return error;
    return sum_parts(to, dw, partial, p.splits, sizes.weights(), stream);
  });
}

}  // namespace plimsoll::cuda
