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
  RingBarriers pixel_ring, result_ring;

  __device__ BandsMemory(void* shared, const VolumeBands& p) {
    pixels = bordered<VolumeBands::border_bytes>(shared);
    results = pixels + p.stages * p.stage_bytes;
    biases = reinterpret_cast<float*>(results + p.result_stages * p.result_bytes);
    pixel_ring = {reinterpret_cast<Barrier*>(biases + VolumeBands::most_biases), p.stages};
    result_ring = {pixel_ring.end(), p.result_stages};
  }
  // Pixels behind a line meet weights of zero alone.
  __device__ void create(const VolumeBands& p) const {
    clear_shared(pixels, biases);
    if (threadIdx.x != 0) return;
    pixel_ring.create(p.warps);
    result_ring.create(p.warps);
    show_barriers_to_copies();
  }
};

// By a warp: asks for planes.
template <typename T>
__device__ void copy_planes(const BandsMemory& memory, const T* in, const VolumeBands& p) {
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, lines = p.in_lines;
  const int line_bytes = p.in[2] * p.pixel_bytes();
  RingPlace load;
  for (VolumeColumns at(p, p.out[0]); at.is_there(); at.next(p)) {
    const ColumnPlanes planes(at, p.first[0]);
    for (int plane = planes.first; plane < planes.end; ++plane) {
      if (!is_plane_of(p.in, plane)) continue;
      Barrier* const copied = memory.pixel_ring.copied(load.stage);
      uint8_t* const to = memory.pixels + load.stage * p.stage_bytes + p.zero_bytes;
      wait_at(memory.pixel_ring.used(load.stage), load.parity ^ 1);
      if (lane == 0) arrive_with_copies(copied, lines * line_bytes);
      __syncwarp();
      copy_whole_lines(to, p.pitch, lines, in, at.image * p.in[0] + plane, at.line / p.stride + p.first[1], p.in,
                       line_bytes, true, copied);
      load.advance(p.stages);
    }
  }
}
// By one thread: has results stored.
template <typename T>
__device__ void store_planes(const BandsMemory& memory, T* out, const VolumeBands& p) {
  RingPlace store;
  for (VolumeColumns at(p, p.out[0]); at.is_there(); at.next(p)) {
    for (int plane = at.begin; plane < at.end; ++plane) {
      const uint8_t* const from = memory.results + store.stage * p.result_bytes;
      const int64_t whole_plane = int64_t{at.image} * p.out[0] + plane;
      const int line = at.line + p.first_out[0], missing = max(-line, 0),
                count = min(p.lines, p.out[1] - line) - missing;
      auto* const to = reinterpret_cast<uint8_t*>(out) + (whole_plane * p.out[1] + line + missing) * p.result_pitch;
      wait_at(memory.result_ring.used(store.stage), store.parity);
      store_bytes(from + missing * p.result_pitch, to, count * p.result_pitch);
      wait_for_stored_boxes();
      arrive_at(memory.result_ring.copied(store.stage));
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
    const ColumnPlanes planes(at, p.first[0]);
#pragma unroll 1
    for (int plane = planes.first; plane < planes.end; ++plane) {
      const bool completes = planes.completes(plane);
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
      if (completes) wait_at(memory.result_ring.copied(store.stage), store.parity ^ 1);
      if (is_plane_of(p.in, plane)) {
        wait_at(memory.pixel_ring.copied(load.stage), load.parity);
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
        arrive_as_warp_at(memory.pixel_ring.used(load.stage));
        load.advance(p.stages);
      } else {
        sums.pass_zeros(shared_address(biases), store_made);
      }
      if (completes) {
        show_to_matrix_units();
        arrive_as_warp_at(memory.result_ring.used(store.stage));
        store.advance(p.result_stages);
      }
    }
  }
}

template <typename T, int pairs, int products, int stride>
__global__ void __launch_bounds__(VolumeBands::threads, 1)
    volume_bands_kernel(T* out, const T* in, const T* w, const T* bias, bool gradient,
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
        copy_planes(memory, in, p);
      else if (copying == warp_threads)
        store_planes(memory, out, p);
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
  const auto bytes = static_cast<size_t>(p.shared_bytes());
  return with_16_bits(type, [&]<typename T>(T*) {
    const auto run = [&](auto pairs, auto products, auto stride) {
      const auto kernel =
          volume_bands_kernel<T, decltype(pairs)::value, decltype(products)::value, decltype(stride)::value>;
      if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
      kernel<<<static_cast<unsigned>(p.blocks()), static_cast<unsigned>(VolumeBands::threads), bytes, stream>>>(
          static_cast<T*>(out), static_cast<const T*>(in), static_cast<const T*>(w), static_cast<const T*>(bias),
          gradient, p);
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
