#include "kernels/cuda/conv/volume_windows.cuh"

#include "kernels/cuda/conv/volumes.h"

// Depthwise conv and conv_dx over volumes on the matrix units, for pixels of whole units of 8 channels. A product
// serves two channels: its right operand has 8 pixels of two rows of taps under 8 lines of results, its left one the
// weights of 8 results with these, those of one channel being zeros for the other, which a sparse operand leaves out.
// Threads read and write all 8 channels of a pixel at once. Each plane comes once, and is multiplied by all taps in
// depth: for the results that are complete then, for those behind, and for those that begin here.

namespace plimsoll::cuda {
namespace {

using Plan = VolumeWindows;
constexpr int taps = Plan::taps, all_taps = Plan::all_taps;

struct WindowMemory {
  uint8_t *pixels, *results;
  RingBarriers pixel_ring, result_ring;
  float* biases;
  uint16_t* weights;

  __device__ WindowMemory(void* shared, const Plan& p) {
    pixels = bordered<Plan::border_bytes>(shared);
    results = pixels + p.stages * p.stage_bytes;
    pixel_ring = {reinterpret_cast<Barrier*>(results + Plan::result_stages * p.result_bytes), p.stages};
    result_ring = {pixel_ring.end(), Plan::result_stages};
    biases = reinterpret_cast<float*>(result_ring.end());
    weights = reinterpret_cast<uint16_t*>(biases + Plan::box_channels);
  }
};

// By one thread each: asks for planes, and has results stored.
__device__ inline void copy_planes(const WindowMemory& memory, const CUtensorMap& map, const Plan& p) {
  RingPlace load;
  for (VolumeColumns at(p, p.out[0]); at.is_there(); at.next(p)) {
    const ColumnPlanes planes(at, p.first[0]);
    for (int plane = planes.first; plane < planes.end; ++plane) {
      if (!is_plane_of(p.in, plane)) continue;
      Barrier* const copied = memory.pixel_ring.copied(load.stage);
      wait_at(memory.pixel_ring.used(load.stage), load.parity ^ 1);
      arrive_with_copies(copied, p.in_bytes);
      copy_box(memory.pixels + load.stage * p.stage_bytes, map, first_channel(p), at.column + p.first_pixel,
               at.line + p.first[1], at.image * p.in[0] + plane, copied);
      load.advance(p.stages);
    }
  }
}
__device__ inline void store_planes(const WindowMemory& memory, const CUtensorMap& map, const Plan& p) {
  RingPlace store;
  for (VolumeColumns at(p, p.out[0]); at.is_there(); at.next(p)) {
    for (int plane = at.begin; plane < at.end; ++plane) {
      wait_at(memory.result_ring.used(store.stage), store.parity);
      store_box(memory.results + store.stage * p.result_bytes, map, first_channel(p), at.column, at.line,
                at.image * p.out[0] + plane);
      wait_for_stored_boxes();
      arrive_at(memory.result_ring.copied(store.stage));
      store.advance(Plan::result_stages);
    }
  }
}

// A warp's weights: left operands of each plane of taps, of the first two rows of a plane and of the last one. Thread
// 4 g + t has those of result g with the second and fourth of four pixels, as its right operands have 2 t and 2 t + 1.
struct WindowWeights {
  uint32_t two_rows[taps][unit_pairs][4], last_row[taps][unit_pairs][2];

  // From a copy in shared memory: [8 channels][taps]
  __device__ void load(const uint16_t* weights, bool gradient) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads, t = lane % 4;
    const int first_pixel = t % 2 * 4 + t / 2, first_tap = first_pixel - lane / 4 + 1, second_tap = first_tap + 2;
    const auto is_tap = [](int tap) { return tap >= 0 && tap < taps; };
    const uint32_t first_bits = is_tap(first_tap) ? 0xffff : 0, second_bits = is_tap(second_tap) ? 0xffff : 0;
    // What is no tap reads another one.
    const auto at = [&](int tap) { return (gradient ? all_taps - 1 : 0) + (is_tap(tap) ? gradient ? -tap : tap : 0); };
    const uint16_t *const firsts = weights + at(first_tap), *const seconds = weights + at(second_tap);
    const int row_step = gradient ? -taps : taps;
    const auto word = [&](int channel, int deep, int row) -> uint32_t {
      const int from = channel * all_taps, rows = (deep * taps + row) * row_step;
      return (firsts[from + rows] & first_bits) | (seconds[from + rows] & second_bits) << 16;
    };
#pragma unroll
    for (int deep = 0; deep < taps; ++deep)
#pragma unroll
      for (int pair = 0; pair < unit_pairs; ++pair)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          two_rows[deep][pair][i] = word(2 * pair + i, deep, 0);
          two_rows[deep][pair][2 + i] = word(2 * pair + i, deep, 1);
          last_row[deep][pair][i] = word(2 * pair + i, deep, 2);
        }
  }
};

template <typename T>
__device__ void load_channels(WindowWeights& weights, const WindowMemory& memory, const T* w, const T* bias, int unit,
                              bool gradient, const Plan& p) {
  constexpr int of_unit = Plan::unit * all_taps;
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, channel = first_channel(p) + unit * Plan::unit;
  const auto* from = reinterpret_cast<const uint16_t*>(w) + int64_t{channel} * all_taps;
  uint16_t* const copy = memory.weights + unit * of_unit;
  const int count = min(max(p.channels - channel, 0), Plan::unit) * all_taps;  // beyond the last channel none
#pragma unroll
  for (int i = 0; i < of_unit; i += warp_threads)
    if (i + lane < of_unit) copy[i + lane] = i + lane < count ? __ldg(from + i + lane) : 0;
  float* const biases = memory.biases + unit * Plan::unit;
  if (lane < Plan::unit) biases[lane] = bias && channel + lane < p.channels ? widen(bias[channel + lane]) : 0.0f;
  __syncwarp();
  weights.load(copy, gradient);
}

template <int windows>
using WindowSums = float[windows][unit_pairs][4];

template <typename T, int windows>
class WindowMaker {
 public:
  __device__ WindowMaker(const Plan& p, int unit) : all_bytes_(p.all_bytes) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int window = 0; window < windows; ++window) {
#pragma unroll
      for (int row = 0; row < taps; ++row)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          from_[window][row][i] = place_of_unit((g + row) * p.box_pixels + window * Plan::step + 2 * t + i, unit);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int line = 2 * t + i;
        const bool writes = line < p.lines && p.has_result(window, g);
        to_[window][i] = writes ? place_of_unit(line * p.result_pixels + p.column_of(window, g), unit) : none;
      }
    }
  }
  // done, next: results that this plane completes, and those behind; begun: those that begin.
  __device__ void multiply(WindowSums<windows>& done, WindowSums<windows>& next, WindowSums<windows>& begun,
                           const WindowWeights& weights, uint32_t stage) const {
    uint4 pixels[taps][2];
    load_rows<0, 2>(pixels, 0, stage);
#pragma unroll
    for (int window = 0; window < windows; ++window) {
      uint32_t two[unit_pairs][4], last[unit_pairs][2];
#pragma unroll
      for (int pair = 0; pair < unit_pairs; ++pair)
#pragma unroll
        for (int i = 0; i < 4; ++i) two[pair][i] = moved_word(pair_of(pixels[i / 2][i % 2], pair), all_bytes_);
      load_rows<2, 3>(pixels, window, stage);
      multiply_two<true>(begun[window], weights.two_rows[0], two);
      multiply_two<false>(next[window], weights.two_rows[1], two);
      multiply_two<false>(done[window], weights.two_rows[2], two);
#pragma unroll
      for (int pair = 0; pair < unit_pairs; ++pair)
#pragma unroll
        for (int i = 0; i < 2; ++i) last[pair][i] = moved_word(pair_of(pixels[2][i], pair), all_bytes_);
      if (window + 1 < windows) load_rows<0, 2>(pixels, window + 1, stage);
      multiply_last(done[window], weights.last_row[2], last);
      multiply_last(next[window], weights.last_row[1], last);
      multiply_last(begun[window], weights.last_row[0], last);
    }
  }
  __device__ void store(const WindowSums<windows>& done, uint32_t stage, const float* biases) const {
#pragma unroll
    for (int window = 0; window < windows; ++window)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t words[unit_pairs];
#pragma unroll
        for (int pair = 0; pair < unit_pairs; ++pair) {
          float first = done[window][pair][i], second = done[window][pair][2 + i];
          if (biases) first += biases[2 * pair], second += biases[2 * pair + 1];
          words[pair] = packed_pair<T>(first, second);
        }
        if (to_[window][i] != none) store_unit(stage + to_[window][i], uint4{words[0], words[1], words[2], words[3]});
      }
  }

 private:
  static constexpr uint32_t none = ~0u;
  uint32_t from_[windows][taps][2], to_[windows][2], all_bytes_;  // bytes from a stage on

  template <int first, int end>
  __device__ void load_rows(uint4 (&pixels)[taps][2], int window, uint32_t stage) const {
#pragma unroll
    for (int row = first; row < end; ++row)
#pragma unroll
      for (int i = 0; i < 2; ++i) pixels[row][i] = load_unit(stage + from_[window][row][i]);
  }
  template <bool begins>
  static __device__ void multiply_two(float (&sums)[unit_pairs][4], const uint32_t (&weights)[unit_pairs][4],
                                      const uint32_t (&pixels)[unit_pairs][4]) {
#pragma unroll
    for (int pair = 0; pair < unit_pairs; ++pair) {
      if constexpr (begins) {
        constexpr float zeros[4] = {};
        multiply_add_sparse<T>(sums[pair], weights[pair], pixels[pair], zeros);
      } else {
        multiply_add_sparse<T>(sums[pair], weights[pair], pixels[pair], sums[pair]);
      }
    }
  }
  static __device__ void multiply_last(float (&sums)[unit_pairs][4], const uint32_t (&weights)[unit_pairs][2],
                                       const uint32_t (&pixels)[unit_pairs][2]) {
#pragma unroll
    for (int pair = 0; pair < unit_pairs; ++pair) multiply_add_half_sparse<T>(sums[pair], weights[pair], pixels[pair]);
  }
};

template <typename T, int windows>
__device__ void make_planes(const WindowMemory& memory, const T* w, const T* bias, bool gradient, const Plan& p) {
  const int unit = static_cast<int>(threadIdx.x) / warp_threads;
  WindowWeights weights;
  load_channels(weights, memory, w, bias, unit, gradient, p);
  const WindowMaker<T, windows> maker(p, unit);
  const float* const biases = bias ? memory.biases + unit * Plan::unit : nullptr;
  WindowSums<windows> sums[taps] = {};
  RingPlace load, store;
  for (VolumeColumns at(p, p.out[0]); at.is_there(); at.next(p)) {
    const ColumnPlanes planes(at, p.first[0]);
    const auto make_plane = [&](int plane, WindowSums<windows>& done, WindowSums<windows>& next,
                                WindowSums<windows>& begun) {
      if (is_plane_of(p.in, plane)) {
        wait_at(memory.pixel_ring.copied(load.stage), load.parity);
        maker.multiply(done, next, begun, weights, shared_address(memory.pixels) + load.stage * p.stage_bytes);
        arrive_as_warp_at(memory.pixel_ring.used(load.stage));
        load.advance(p.stages);
      } else {
#pragma unroll
        for (auto& window : begun)
#pragma unroll
          for (auto& pair : window)
#pragma unroll
            for (float& sum : pair) sum = 0;
      }
      if (!planes.completes(plane)) return;
      wait_at(memory.result_ring.copied(store.stage), store.parity ^ 1);
      maker.store(done, shared_address(memory.results) + store.stage * p.result_bytes, biases);
      show_to_matrix_units();
      arrive_as_warp_at(memory.result_ring.used(store.stage));
      store.advance(Plan::result_stages);
    };
#pragma unroll 1
    for (int plane = planes.first; plane < planes.end; plane += taps) {
      make_plane(plane, sums[0], sums[1], sums[2]);
      if (plane + 1 < planes.end) make_plane(plane + 1, sums[1], sums[2], sums[0]);
      if (plane + 2 < planes.end) make_plane(plane + 2, sums[2], sums[0], sums[1]);
    }
  }
}

template <typename T, int windows>
__global__ void __launch_bounds__(Plan::threads, 1)
    volume_windows_kernel(const __grid_constant__ CUtensorMap in, const __grid_constant__ CUtensorMap out, const T* w,
                          const T* bias, bool gradient, const __grid_constant__ Plan p) {
  if constexpr (has_warpgroups) {
    extern __shared__ uint8_t shared[];
    const WindowMemory memory(shared, p);
    const int thread = static_cast<int>(threadIdx.x), copying = thread - Plan::computing_threads;
    if (copying == 0) {
      fetch_map(in), fetch_map(out);
      memory.pixel_ring.create(Plan::warps);
      memory.result_ring.create(Plan::warps);
      show_barriers_to_copies();
    }
    __syncthreads();
    if (copying >= 0) {
      give_registers<window_copying_registers>();
      if (copying == 0)
        copy_planes(memory, in, p);
      else if (copying == warp_threads)
        store_planes(memory, out, p);
    } else {
      take_registers<window_registers>();
      make_planes<T, windows>(memory, w, bias, gradient, p);
    }
  } else {
    __trap();
  }
}

cudaError_t launch(Scalar type, void* out, const void* in, const void* w, const void* bias,
                   const DepthwiseVolumeSizes& c, bool gradient, cudaStream_t stream) {
  const auto p = choose_volume_windows<Plan>(c, gradient);
  CUtensorMap pixels, results;
  if (const cudaError_t error = map_windows(pixels, in, c.batch, p.in, c.channels, p.box_lines(), p.box_pixels))
    return error;
  if (const cudaError_t error = map_windows(results, out, c.batch, p.out, c.channels, p.lines, p.result_pixels))
    return error;
  const auto bytes = static_cast<size_t>(p.shared_bytes());
  return with_16_bits(type, [&]<typename T>(T*) {
    const auto run = [&](auto kernel) {
      if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
      kernel<<<static_cast<unsigned>(p.blocks()), Plan::threads, bytes, stream>>>(
          pixels, results, static_cast<const T*>(w), static_cast<const T*>(bias), gradient, p);
      return cudaGetLastError();
    };
    return p.windows == 1 ? run(volume_windows_kernel<T, 1>) : run(volume_windows_kernel<T, 2>);
  });
}

}  // namespace

cudaError_t volume_windows(Scalar type, void* y, const void* x, const void* w, const void* bias,
                           const DepthwiseVolumeSizes& sizes, cudaStream_t stream) {
  return launch(type, y, x, w, bias, sizes, false, stream);
}

cudaError_t volume_windows_dx(Scalar type, void* dx, const void* dy, const void* w, const DepthwiseVolumeSizes& sizes,
                              cudaStream_t stream) {
  return launch(type, dx, dy, w, nullptr, sizes, true, stream);
}

}  // namespace plimsoll::cuda
