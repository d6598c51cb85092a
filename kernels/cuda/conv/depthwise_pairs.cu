#include "kernels/cuda/conv/depthwise.h"

#include "kernels/cuda/conv/depthwise_pair_rows.cuh"
#include "kernels/cuda/conv/depthwise_planes.cuh"

// Depthwise conv and conv_dx on the matrix units, pixels as they lie in memory. A product serves two channels: its left
// operand has 4 or 8 neighbours of 16 blocks of 4 results, two channels each, its right one has in the columns of a
// channel the weights of that channel between zeros. So a thread's operands are words of two channels, and its sums are
// results of two channels. 7 of 24 terms count for 7 x 7 taps. Rows of pixels come by the copy engine and go by it,
// while others are multiplied; x and y move once, but for the rims of tiles.

namespace plimsoll::cuda {
namespace {

// Of the 504 that three threads, one of each warpgroup, have together.
constexpr int computing_registers = 232, copying_registers = 40;

// Rows of pixels on their way to products, and of results on their way to memory, with barriers for each: that it is
// there, and that it has been read. The block's weights and biases lie behind.
template <typename T>
struct PairMemory {
  uint8_t *pixels, *results;
  T* weights;
  float* biases;
  Barrier *full, *empty, *made, *stored;

  __device__ PairMemory(void* shared, const DepthwisePairs& p) {
    pixels = first_box_border(shared);
    results = pixels + p.stages * p.stage_bytes;
    weights = reinterpret_cast<T*>(results + DepthwisePairs::result_stages * p.result_bytes);
    biases = reinterpret_cast<float*>(weights + DepthwisePairs::block_channels * p.kernel * p.kernel);
    full = reinterpret_cast<Barrier*>(biases + DepthwisePairs::block_channels);
    empty = full + p.stages;
    made = empty + p.stages;
    stored = made + DepthwisePairs::result_stages;
  }
  // Behind the pixels of a stage: zeros, for taps that read outside the image.
  __device__ static int first_zero(const DepthwisePairs& p) {
    return (p.stage_bytes - DepthwisePairs::border_bytes) / DepthwisePairs::pixel_bytes;
  }
  __device__ void create(const DepthwisePairs& p) const {
    constexpr int zeros = DepthwisePairs::border_bytes / 16;
    const int thread = static_cast<int>(threadIdx.x);
    for (int i = thread; i < p.stages * zeros; i += DepthwisePairs::threads)
      reinterpret_cast<uint4*>(pixels + (i / zeros + 1) * p.stage_bytes - DepthwisePairs::border_bytes)[i % zeros] =
          uint4{0, 0, 0, 0};
    if (thread != 0) return;
    for (int i = 0; i < p.stages; ++i) set_up_barrier(full + i, 1), set_up_barrier(empty + i, DepthwisePairs::warps);
    for (int i = 0; i < DepthwisePairs::result_stages; ++i)
      set_up_barrier(made + i, DepthwisePairs::warps), set_up_barrier(stored + i, 1);
    show_barriers_to_copies();
  }
};

// By one thread each: asks for rows of pixels, and has rows of results stored.
template <typename T, typename Taps>
__device__ void copy_rows(const PairMemory<T>& memory, const CUtensorMap& in, const DepthwisePairs& p) {
  fetch_map(in);
  RingPlace load;
  for (PairRow at(p); at.is_there(); at.next(p)) {
    if (!at.has_pixels(p)) continue;
    wait_at(memory.empty + load.stage, load.parity ^ 1);
    arrive_with_copies(memory.full + load.stage, p.images * p.across.pixels * DepthwisePairs::pixel_bytes);
    const int column = Taps::one ? at.column : Taps::two ? 2 * at.column : at.column / 2;
    copy_box(memory.pixels + load.stage * p.stage_bytes, in, at.channel, column + p.across.first,
             at.first_pixel + at.row, at.image, memory.full + load.stage);
    load.advance(p.stages);
  }
}
template <typename T, typename Taps>
__device__ void store_rows(const PairMemory<T>& memory, const CUtensorMap& out, const DepthwisePairs& p) {
  fetch_map(out);
  RingPlace store, read;
  bool has_stored = false;
  for (PairRow at(p); at.is_there(); at.next(p))
    for (int i = 0; i < Taps::finished; ++i) {
      const int row = at.finished<Taps>(i);
      if (row < 0) continue;
      wait_at(memory.made + store.stage, store.parity);
      store_box(memory.results + store.stage * p.result_bytes, out, at.channel, at.column, at.first_result + row,
                at.image);
      asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 1;" ::: "memory");
      if (has_stored) {
        arrive_at(memory.stored + read.stage);
        read.advance(DepthwisePairs::result_stages);
      }
      has_stored = true;
      store.advance(DepthwisePairs::result_stages);
    }
  wait_for_stored_boxes();
}

// Where a thread reads pixels of a stage and writes results of one. Threads that read at once, 8 of them, are in strips
// half a turn of banks apart, where images or strips lie so.
template <typename Taps>
struct PairPlaces {
  uint32_t from[Taps::loads], to[2];
  bool writes[2];

  __device__ PairPlaces(const uint8_t* pixels, const uint8_t* results, int first_zero, const DepthwisePairs& p) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads, warp = static_cast<int>(threadIdx.x) / warp_threads;
    const int number = lane / 4,
              strip = Taps::half ? number : number / 2 + number % 2 * (DepthwisePairs::max_strips / 2);
    const int image = strip / p.strips, of_image = strip - image * p.strips;
    const bool valid = image < p.images;
#pragma unroll
    for (int i = 0; i < Taps::loads; ++i) {
      const int x = of_image * Taps::strip_pixels + p.across.shift + Taps::load_pixels * i + lane % 4;
      const int pixel = image * p.across.pixels + x, zero = first_zero + (pixel & 7);
      const bool inside = valid && x >= 0 && x < p.across.pixels;
      from[i] = shared_address(pixels) + place_of_unit(inside ? pixel : zero, warp);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int x = of_image * DepthwisePairs::strip + DepthwisePairs::block * i + lane % 4;
      writes[i] = valid && x < p.width;
      to[i] = shared_address(results) + place_of_unit(image * p.width + x, warp);
    }
  }
};

// The left operands that a row of pixels makes. A thread loads four pairs of channels of a block at once, and operands
// have one pair of several blocks: their words move once a row, in a way that the compiler does not put off until each
// product.
template <typename Taps>
struct PairOperands {
  LeftFragment whole[unit_pairs], tail[unit_pairs];

  // all_bytes: selectors of whole words, which the compiler does not know to be that, nor to be the same.
  __device__ PairOperands(const uint4 (&pixels)[Taps::loads], const uint32_t (&all_bytes)[2]) {
    constexpr int apart = Taps::apart, loads = Taps::loads;
#pragma unroll
    for (int pair = 0; pair < unit_pairs; ++pair) {
      const auto word = [&](int i, int selector) {
        return selected_bytes(pair_of(pixels[i % loads], pair), all_bytes[selector]);
      };
      whole[pair].at[0] = word(0, 0), whole[pair].at[1] = word(apart, 0);
      if constexpr (Taps::has_whole) whole[pair].at[2] = word(1, 1), whole[pair].at[3] = word(apart + 1, 1);
      if constexpr (Taps::has_tail) tail[pair].at[0] = word(2, 0), tail[pair].at[1] = word(apart + 2, 0);
    }
  }
};

// Adds the products of a row of pixels with all rows of taps; `row` of the period. Sums of rows that the item does not
// have are added to, too, and begun anew when they would be finished.
template <typename T, typename Taps>
__device__ void add_products(StripSums (&sums)[Taps::places], const PairOperands<Taps>& pixels,
                             const PairWeights<T, Taps>& weights, int row) {
#pragma unroll
  for (int down = 0; down < Taps::kernel; ++down) {
    if (!Taps::meets(row, down)) continue;
#pragma unroll
    for (int pair = 0; pair < unit_pairs; ++pair) {
      float(&sum)[4] = sums[Taps::place(row, down)][pair];
      if constexpr (Taps::has_whole)
        multiply_add<T>(sum, pixels.whole[pair], weights.of_whole(down, pair), 0);
      else
        multiply_add_half<T>(sum, pixels.whole[pair], weights.of_whole(down, pair), 0);
    }
  }
  if constexpr (Taps::has_tail) {
#pragma unroll
    for (int down = 0; down < Taps::kernel; ++down) {
      if (!Taps::meets(row, down)) continue;
#pragma unroll
      for (int pair = 0; pair < unit_pairs; ++pair)
        multiply_add_half<T>(sums[Taps::place(row, down)][pair], pixels.tail[pair], weights.of_tail(down, pair), 0);
    }
  }
}

// The weights and biases of 64 channels; zeros behind the last channel.
template <typename T>
__device__ void load_channels(const PairMemory<T>& memory, const T* w, const T* bias, int channel,
                              const DepthwisePairs& p) {
  const int taps = p.kernel * p.kernel, count = min(DepthwisePairs::block_channels, p.channels - channel);
  wait_for_computing_threads();
  for (int i = static_cast<int>(threadIdx.x); i < DepthwisePairs::block_channels * taps;
       i += DepthwisePairs::computing_threads)
    memory.weights[i] = i < count * taps ? w[int64_t{channel} * taps + i] : T(0.0f);
  for (int i = static_cast<int>(threadIdx.x); i < DepthwisePairs::block_channels;
       i += DepthwisePairs::computing_threads)
    memory.biases[i] = bias && i < count ? widen(bias[channel + i]) : 0.0f;
  wait_for_computing_threads();
}

template <typename T, typename Taps>
__device__ void multiply_rows(const PairMemory<T>& memory, const T* w, const T* bias, const DepthwisePairs& p) {
  const PairPlaces<Taps> places(memory.pixels, memory.results, memory.first_zero(p), p);
  const float* biases = memory.biases + threadIdx.x / warp_threads * unit_channels;
  PairWeights<T, Taps> weights;
  StripSums sums[Taps::places];
  RingPlace load, store;
  int channel = -1;
  for (PairRow at(p); at.is_there(); at.next_item(p)) {
    if (at.channel != channel) {
      channel = at.channel;
      load_channels(memory, w, bias, channel, p);
      weights.load(memory.weights, p);
    }
#pragma unroll
    for (StripSums& of_row : sums) begin_with(of_row, biases);
    for (int first_row = 0; first_row < at.rows; first_row += Taps::period) {
#pragma unroll
      for (int row = 0; row < Taps::period; ++row) {
        at.row = first_row + row;
        if (at.row >= at.rows) break;
        if (at.has_pixels(p)) {
          wait_at(memory.full + load.stage, load.parity);
          uint4 pixels[Taps::loads];
#pragma unroll
          for (int i = 0; i < Taps::loads; ++i) pixels[i] = load_unit(places.from[i] + load.stage * p.stage_bytes);
          const PairOperands<Taps> operands(pixels, p.all_bytes);
          arrive_as_warp_at(memory.empty + load.stage);
          load.advance(p.stages);
          add_products<T, Taps>(sums, operands, weights, row);
        }
#pragma unroll
        for (int i = 0; i < Taps::finished; ++i) {
          if (!Taps::meets(row, Taps::kernel - 1)) continue;
          StripSums& of_row = sums[Taps::finished_place(row, i)];
          if (at.finished<Taps>(i) >= 0) {
            wait_at(memory.stored + store.stage, store.parity ^ 1);
#pragma unroll
            for (int second = 0; second < 2; ++second)
              if (places.writes[second])
                store_unit(places.to[second] + store.stage * p.result_bytes, rounded_results<T>(of_row, second));
            show_to_matrix_units();
            arrive_as_warp_at(memory.made + store.stage);
            store.advance(DepthwisePairs::result_stages);
          }
          begin_with(of_row, biases);
        }
      }
    }
  }
}

template <typename T, typename Taps>
__global__ void __launch_bounds__(DepthwisePairs::threads, 1)
    depthwise_pairs_kernel(const __grid_constant__ CUtensorMap in, const __grid_constant__ CUtensorMap out, const T* w,
                           const T* bias, const __grid_constant__ DepthwisePairs p) {
  if constexpr (has_warpgroups) {
    extern __shared__ uint8_t shared[];
    const PairMemory<T> memory(shared, p);
    memory.create(p);
    __syncthreads();
    if (threadIdx.x >= DepthwisePairs::computing_threads) {
      give_registers<copying_registers>();
      const int thread = static_cast<int>(threadIdx.x) - DepthwisePairs::computing_threads;
      if (thread == 0) copy_rows<T, Taps>(memory, in, p);
      if (thread == warp_threads) store_rows<T, Taps>(memory, out, p);
    } else {
      take_registers<computing_registers>();
      multiply_rows<T, Taps>(memory, w, bias, p);
    }
  } else {
    __trap();
  }
}

// Calls visit with the taps as a type; fits_depthwise_pairs has no others.
template <typename Visit>
cudaError_t with_taps(const DepthwisePairs& p, Visit visit) {
  return with_kernel_size(p.kernel, [&](auto size) {
    constexpr int kernel = decltype(size)::value;
    if (p.steps == PairSteps::One) return visit(PairTaps<kernel, PairSteps::One>());
    if constexpr (kernel < 7)
      return p.steps == PairSteps::Two ? visit(PairTaps<kernel, PairSteps::Two>())
                                       : visit(PairTaps<kernel, PairSteps::Half>());
    return cudaErrorInvalidValue;
  });
}

cudaError_t launch(Scalar type, void* out, const void* in, const void* w, const void* bias, const ConvolutionSizes& c,
                   bool gradient, cudaStream_t stream) {
  const DepthwisePairs p(c, gradient);
  if (p.items == 0) return cudaSuccess;
  CUtensorMap pixels, results;
  const ImageBoxes in_boxes{{c.batch, p.in[0], p.in[1], p.channels}, {p.images, 1, p.across.pixels}, {1, 1}};
  const ImageBoxes out_boxes{{c.batch, p.out[0], p.out[1], p.channels}, {p.images, 1, p.width}, {1, 1}};
  if (const cudaError_t error = map_image(pixels, in, in_boxes)) return error;
  if (const cudaError_t error = map_image(results, out, out_boxes)) return error;
  const auto bytes = static_cast<size_t>(p.shared_bytes());
  return with_16_bits(type, [&]<typename T>(T*) {
    return with_taps(p, [&](auto taps) {
      const auto kernel = depthwise_pairs_kernel<T, decltype(taps)>;
      if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
      kernel<<<static_cast<unsigned>(p.blocks()), DepthwisePairs::threads, bytes, stream>>>(
          pixels, results, static_cast<const T*>(w), static_cast<const T*>(bias), p);
      return cudaGetLastError();
    });
  });
}

}  // namespace

cudaError_t depthwise_pairs(Scalar type, void* y, const void* x, const void* w, const void* bias,
                            const ConvolutionSizes& sizes, cudaStream_t stream) {
  return launch(type, y, x, w, bias, sizes, false, stream);
}

cudaError_t depthwise_pairs_dx(Scalar type, void* dx, const void* dy, const void* w, const ConvolutionSizes& sizes,
                               cudaStream_t stream) {
  return launch(type, dx, dy, w, nullptr, sizes, true, stream);
}

}  // namespace plimsoll::cuda
