#include "kernels/cuda/conv/volume_bands.cuh"

#include "kernels/cuda/conv/unit_tiles.cuh"
#include "kernels/cuda/conv/volume_band_sums.cuh"
#include "kernels/cuda/conv/volumes.h"

// Depthwise conv and conv_dx over volumes on the matrix units. A product serves two channels: its left operand has 8
// pixels of 16 strips, of which a pixel's word has both channels, and its right one the weights of a row of taps for 4
// neighbouring results of both, between zeros. Planes come by the copy engine and go by it. Each is multiplied once by
// all taps: with the last plane of them for results that are complete then, with the middle one for those behind, and
// with the first one for those that begin here.

namespace plimsoll::cuda {
namespace {

constexpr int taps = VolumeBands::taps;
// Of the 504 that three threads, one of each warpgroup, have together.
constexpr int computing_registers = 232, copying_registers = 40;

struct BandsMemory {
  uint8_t *pixels, *results;
  float* biases;
  Barrier *full, *empty, *made, *stored;

  __device__ BandsMemory(void* shared, const VolumeBands& p) {
    constexpr uint32_t border = VolumeBands::border_bytes;
    pixels = static_cast<uint8_t*>(shared) + (border - shared_address(shared) % border) % border;
    results = pixels + p.stages * p.stage_bytes;
    biases = reinterpret_cast<float*>(results + p.result_stages * p.result_bytes);
    full = reinterpret_cast<Barrier*>(biases + VolumeBands::most_biases);
    empty = full + p.stages;
    made = empty + p.stages;
    stored = made + p.result_stages;
  }
  // Pixels behind a line meet weights of zero alone.
  __device__ void create(const VolumeBands& p) const {
    clear_shared(pixels, biases);
    if (threadIdx.x != 0) return;
    for (int i = 0; i < p.stages; ++i) set_up_barrier(full + i, 1), set_up_barrier(empty + i, p.warps);
    for (int i = 0; i < p.result_stages; ++i) set_up_barrier(made + i, p.warps), set_up_barrier(stored + i, 1);
    show_barriers_to_copies();
  }
};

// Planes that a column of results is made of, from `first` up to `end`.
struct BandPlanes {
  int first, end;

  __device__ BandPlanes(const VolumeBands& p, const VolumeColumns& at)
      : first(at.begin + p.first[0]), end(at.end + p.first[0] + taps - 1) {}
};
__device__ inline bool is_plane(const VolumeBands& p, int plane) {
  return static_cast<unsigned>(plane) < static_cast<unsigned>(p.in[0]);
}

// By a warp: asks for planes.
template <typename T>
__device__ void copy_planes(const BandsMemory& memory, const CUtensorMap& map, const T* in, const VolumeBands& p) {
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, lines = p.in_lines;
  const int line_bytes = p.in[2] * p.pixel_bytes(), bytes = lines * (p.whole_lines ? line_bytes : p.pitch);
  RingPlace load;
  for (VolumeColumns at(p, p.out[0]); at.is_there(); at.next(p)) {
    const BandPlanes planes(p, at);
    for (int plane = planes.first; plane < planes.end; ++plane) {
      if (!is_plane(p, plane)) continue;
      Barrier* const full = memory.full + load.stage;
      uint8_t* const to = memory.pixels + load.stage * p.stage_bytes;
      const int whole_plane = at.image * p.in[0] + plane, line = at.line / p.stride + p.first[1];
      wait_at(memory.empty + load.stage, load.parity ^ 1);
      if (lane == 0) arrive_with_copies(full, bytes);
      __syncwarp();
      if (p.whole_lines)
        copy_whole_lines(to + p.zero_bytes, p.pitch, lines, in, whole_plane, line, p.in, line_bytes, true, full);
      else if (lane == 0)
        copy_box(to, map, first_channel(p), at.column + p.first[2], line, whole_plane, full);
      load.advance(p.stages);
    }
  }
}
// By one thread: has results stored.
template <typename T>
__device__ void store_planes(const BandsMemory& memory, const CUtensorMap& map, T* out, const VolumeBands& p) {
  RingPlace store;
  for (VolumeColumns at(p, p.out[0]); at.is_there(); at.next(p)) {
    for (int plane = at.begin; plane < at.end; ++plane) {
      const uint8_t* const from = memory.results + store.stage * p.result_bytes;
      const int64_t whole_plane = int64_t{at.image} * p.out[0] + plane;
      const int line = at.line + p.first_out[0];
      wait_at(memory.made + store.stage, store.parity);
      if (p.whole_lines) {
        const int missing = max(-line, 0), count = min(p.lines, p.out[1] - line) - missing;
        auto* const to = reinterpret_cast<uint8_t*>(out) + (whole_plane * p.out[1] + line + missing) * p.result_pitch;
        store_bytes(from + missing * p.result_pitch, to, count * p.result_pitch);
      } else {
        store_box(from, map, first_channel(p), at.column, line, static_cast<int>(whole_plane));
      }
      wait_for_stored_boxes();
      arrive_at(memory.stored + store.stage);
      store.advance(p.result_stages);
    }
  }
}

template <int stride, typename T, int pairs>
__device__ void load_channels(BandWeights (&weights)[pairs], float* biases, const T* w, const T* bias, int channel,
                              bool gradient, const VolumeBands& p) {
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
#pragma unroll
  for (int pair = 0; pair < pairs; ++pair)
    weights[pair].template load<stride>(w, channel + 2 * pair, gradient, p.channels);
  __syncwarp();
  if (lane < 2 * pairs) biases[lane] = bias && channel + lane < p.channels ? widen(bias[channel + lane]) : 0.0f;
  __syncwarp();
}

template <typename T, int pairs, int products, int stride>
__device__ void make_planes(const BandsMemory& memory, const T* w, const T* bias, bool gradient, const VolumeBands& p) {
  constexpr int halves = stride == 1 ? 1 : products / stride, of_half = products / halves;
  const int first_pair = static_cast<int>(threadIdx.x) / warp_threads * pairs;
  const BandPlaces all_places[] = {BandPlaces(p, 0), BandPlaces(p, halves - 1)};
  uint32_t of_weights[2][2];
  BandWeights::find_places<stride>(of_weights);
  const uint32_t far_pixel = 4 * p.pixel_bytes(), pitch = p.pitch, out_pitch = p.result_pitch;
  float* const biases = memory.biases + first_pair * 2;
  BandWeights weights[pairs];
  load_channels<stride>(weights, biases, w, bias, first_channel(p) + 2 * first_pair, gradient, p);
  BandSums<T, pairs, products> sums;
  RingPlace load, store;
  for (VolumeColumns at(p, p.out[0]); at.is_there(); at.next(p)) {
    const BandPlanes planes(p, at);
#pragma unroll 1
    for (int plane = planes.first; plane < planes.end; ++plane) {
      const bool completes = plane >= planes.first + taps - 1;
      const uint32_t to = shared_address(memory.results) + store.stage * p.result_bytes + first_pair * 4;
      const auto store_made = [&](const uint32_t(&made)[products][2], int pair) {
        const bool is_there = completes && first_pair + pair < p.block_pairs();
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int product = 0; product < products; ++product) {
            const BandPlaces& places = all_places[product / of_half];
            store_pair_if(is_there ? places.writes[i] : 0, to + places.to[i] + product % of_half * out_pitch + pair * 4,
                          made[product][i]);
          }
      };
      if (completes) wait_at(memory.stored + store.stage, store.parity ^ 1);
      if (is_plane(p, plane)) {
        wait_at(memory.full + load.stage, load.parity);
        const uint32_t stage = shared_address(memory.pixels) + load.stage * p.stage_bytes + first_pair * 4;
        if constexpr (stride == 1) {
          const auto load_line = [&](uint32_t(&pixels)[4], int pair, int line) {
#pragma unroll
            for (int i = 0; i < 4; ++i)
              pixels[i] = load_pair(stage + all_places[0].from[i % 2] + i / 2 * far_pixel + line * pitch + pair * 4);
          };
          sums.multiply(weights, of_weights, shared_address(biases), load_line, store_made);
        } else {
          const auto load_line = [&](uint32_t(&pixels)[2], int pair, int half, int line) {
#pragma unroll
            for (int i = 0; i < 2; ++i)
              pixels[i] = load_pair(stage + all_places[half].from[i] + line * pitch + pair * 4);
          };
          sums.template multiply_strided<halves>(weights, of_weights, shared_address(biases), load_line, store_made);
        }
        arrive_as_warp_at(memory.empty + load.stage);
        load.advance(p.stages);
      } else {
        sums.pass_zeros(shared_address(biases), store_made);
      }
      if (completes) {
        show_to_matrix_units();
        arrive_as_warp_at(memory.made + store.stage);
        store.advance(p.result_stages);
      }
    }
  }
}

template <typename T, int pairs, int products, int stride>
__global__ void __launch_bounds__(VolumeBands::threads, 1)
    volume_bands_kernel(const __grid_constant__ CUtensorMap in, const __grid_constant__ CUtensorMap out, T* to,
                        const T* from, const T* w, const T* bias, bool gradient,
                        const __grid_constant__ VolumeBands p) {
  if constexpr (has_warpgroups) {
    extern __shared__ uint8_t shared[];
    const BandsMemory memory(shared, p);
    memory.create(p);
    __syncthreads();
    const int thread = static_cast<int>(threadIdx.x), copying = thread - VolumeBands::computing_threads;
    if (copying >= 0) {
      give_registers<copying_registers>();
      if (copying < warp_threads)
        copy_planes(memory, in, from, p);
      else if (copying == warp_threads)
        store_planes(memory, out, to, p);
    } else {
      take_registers<computing_registers>();
      if (thread < p.warps * warp_threads) make_planes<T, pairs, products, stride>(memory, w, bias, gradient, p);
    }
  } else {
    __trap();
  }
}

// Calls run with a warp's pairs of channels, the products of each and the stride as constants.
template <typename Run>
cudaError_t with_pairs(const VolumeBands& p, Run run) {
  constexpr std::integral_constant<int, 1> one;
  constexpr std::integral_constant<int, 2> two;
  constexpr std::integral_constant<int, 4> four;
  constexpr std::integral_constant<int, 5> five;
  constexpr std::integral_constant<int, 7> seven;
  const auto with_products = [&](auto stride) {
    if (p.products() == 4) return run(four, four, stride);
    return p.warp_pairs == 4   ? run(four, two, stride)
           : p.warp_pairs == 5 ? run(five, two, stride)
                               : run(seven, two, stride);
  };
  if (p.products() == 1) return p.warp_pairs == 5 ? run(five, one, one) : run(seven, one, one);
  return p.stride == 1 ? with_products(one) : with_products(two);
}

cudaError_t launch(Scalar type, void* out, const void* in, const void* w, const void* bias,
                   const DepthwiseVolumeSizes& c, bool gradient, cudaStream_t stream) {
  const VolumeBands p(c, gradient);
  CUtensorMap pixels = {}, results = {};
  if (!p.whole_lines) {
    const auto map = [&](CUtensorMap& map, const void* tensor, const int(&size)[3], int columns, int lines) {
      return map_line_boxes(map, tensor, {c.batch * size[0], size[1], size[2], c.channels}, p.block_channels, columns,
                            lines);
    };
    if (const cudaError_t error = map(pixels, in, p.in, p.in_columns, p.in_lines)) return error;
    if (const cudaError_t error = map(results, out, p.out, p.width, p.lines)) return error;
  }
  const auto bytes = static_cast<size_t>(p.shared_bytes());
  return with_16_bits(type, [&]<typename T>(T*) {
    const auto run = [&](auto pairs, auto products, auto stride) {
      const auto kernel =
          volume_bands_kernel<T, decltype(pairs)::value, decltype(products)::value, decltype(stride)::value>;
      if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
      kernel<<<static_cast<unsigned>(p.blocks()), static_cast<unsigned>(VolumeBands::threads), bytes, stream>>>(
          pixels, results, static_cast<T*>(out), static_cast<const T*>(in), static_cast<const T*>(w),
          static_cast<const T*>(bias), gradient, p);
      return cudaGetLastError();
    };
    return with_pairs(p, run);
  });
}

}  // namespace

cudaError_t volume_bands(Scalar type, void* y, const void* x, const void* w, const void* bias,
                         const DepthwiseVolumeSizes& sizes, cudaStream_t stream) {
  return launch(type, y, x, w, bias, sizes, false, stream);
}

cudaError_t volume_bands_dx(Scalar type, void* dx, const void* dy, const void* w, const DepthwiseVolumeSizes& sizes,
                            cudaStream_t stream) {
  return launch(type, dx, dy, w, nullptr, sizes, true, stream);
}

}  // namespace plimsoll::cuda
