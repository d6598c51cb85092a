#include "kernels/cuda/conv/pointwise_chunks.cuh"

#include "kernels/cuda/conv/pointwise.h"
#include "kernels/cuda/conv/unit_tiles.cuh"

// Convolutions of one tap and their input gradients, for pixels that are no multiples of 16 bytes: chunks of them are,
// which the copy engine brings and takes away as they lie in memory. A warp multiplies 16 pixels by all weights, which
// it has in registers. Reads x and writes y once.

namespace plimsoll::cuda {
namespace {

using Plan = PointwiseChunks;

struct ChunkMemory {
  uint8_t *pixels, *results;
  RingBarriers pixel_ring, result_ring;

  __device__ ChunkMemory(void* shared, const Plan& p) {
    pixels = bordered<Plan::border_bytes>(shared);
    results = pixels + p.stages * p.stage_bytes;
    pixel_ring = {reinterpret_cast<Barrier*>(results + Plan::result_stages * p.result_bytes), p.stages};
    result_ring = {pixel_ring.end(), Plan::result_stages};
  }
  __device__ void create(const Plan& p) const {
    if (threadIdx.x != 0) return;
    pixel_ring.create(Plan::warps);
    result_ring.create(Plan::warps);
    show_barriers_to_copies();
  }
};

// By one thread each.
template <typename T>
__device__ void copy_chunks(const ChunkMemory& memory, const T* x, const Plan& p) {
  RingPlace load;
  for (BlockChunks at(p); at.begin < at.end; ++at.begin) {
    const int bytes = pixels_of_chunk(p, at.begin) * p.from * 2;
    wait_at(memory.pixel_ring.used(load.stage), load.parity ^ 1);
    arrive_with_copies(memory.pixel_ring.copied(load.stage), bytes);
    copy_bytes(memory.pixels + load.stage * p.stage_bytes, x + at.begin * p.chunk_pixels * p.from, bytes,
               memory.pixel_ring.copied(load.stage));
    load.advance(p.stages);
  }
}
template <typename T>
__device__ void store_chunks(const ChunkMemory& memory, T* y, const Plan& p) {
  RingPlace store;
  for (BlockChunks at(p); at.begin < at.end; ++at.begin) {
    wait_at(memory.result_ring.used(store.stage), store.parity);
    store_bytes(memory.results + store.stage * p.result_bytes, y + at.begin * p.chunk_pixels * p.to,
                pixels_of_chunk(p, at.begin) * p.to * 2);
    wait_for_stored_boxes();
    arrive_at(memory.result_ring.copied(store.stage));
    store.advance(Plan::result_stages);
  }
}

// A thread's weights of all products: right operands, of which a word has two channels that are read.
template <int steps, int tiles>
struct PointwiseWeights {
  uint32_t of[steps][tiles][2];

  // w: [to][from], or [from][to] for gradients
  template <typename T>
  __device__ void load(const T* w, bool gradient, const Plan& p) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads;
    const auto* weights = reinterpret_cast<const uint16_t*>(w);
    const auto weight = [&](int from, int to) -> uint32_t {
      if (from >= p.from || to >= p.to) return 0;
      return weights[gradient ? from * p.to + to : to * p.from + from];
    };
#pragma unroll
    for (int step = 0; step < steps; ++step)
#pragma unroll
      for (int tile = 0; tile < tiles; ++tile)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int from = step * 16 + i * 8 + lane % 4 * 2, to = tile * 8 + lane / 4;
          of[step][tile][i] = weight(from, to) | weight(from + 1, to) << 16;
        }
  }
};

template <typename T, int steps, int tiles>
__device__ void make_chunks(const ChunkMemory& memory, const T* w, const T* bias, bool gradient, const Plan& p) {
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, warp = static_cast<int>(threadIdx.x) / warp_threads;
  PointwiseWeights<steps, tiles> weights;
  weights.load(w, gradient, p);
  const int from_pairs = p.from / 2, to_pairs = p.to / 2;
  const int row = warp * Plan::product_pixels + lane / 4, pair = lane % 4;
  const uint32_t first = shared_address(memory.pixels) + (row * from_pairs + pair) * 4,
                 first_result = shared_address(memory.results) + (row * to_pairs + pair) * 4;
  constexpr int products_apart = Plan::warps * Plan::product_pixels;  // pixels
  RingPlace load, store;
  for (BlockChunks at(p); at.begin < at.end; ++at.begin) {
    const int pixels = pixels_of_chunk(p, at.begin);
    wait_at(memory.pixel_ring.copied(load.stage), load.parity);
    wait_at(memory.result_ring.copied(store.stage), store.parity ^ 1);
#pragma unroll 1
    for (int product = 0; product < Plan::of_warp; ++product) {
      if (product * products_apart + warp * Plan::product_pixels >= pixels) break;
      const uint32_t from = first + load.stage * p.stage_bytes + product * products_apart * p.from * 2;
      const uint32_t to = first_result + store.stage * p.result_bytes + product * products_apart * p.to * 2;
      float sums[tiles][4];
#pragma unroll
      for (int tile = 0; tile < tiles; ++tile) {
        const int channel = tile * 8 + pair * 2;
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[tile][i] = bias && channel < p.to ? widen(bias[channel + i % 2]) : 0.0f;
      }
#pragma unroll
      for (int step = 0; step < steps; ++step) {
        LeftFragment left;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int of_pixel = step * 8 + i / 2 * 4;
          // What lies behind a pixel's channels is of the next one.
          left.at[i] = of_pixel + pair < from_pairs ? load_pair(from + (i % 2 * 8 * from_pairs + of_pixel) * 4) : 0;
        }
#pragma unroll
        for (int tile = 0; tile < tiles; ++tile) {
          const RightFragments right{{weights.of[step][tile][0], weights.of[step][tile][1], 0, 0}};
          multiply_add<T>(sums[tile], left, right, 0);
        }
      }
#pragma unroll
      for (int tile = 0; tile < tiles; ++tile)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          store_pair_if(tile * 4 + pair < to_pairs, to + (half * 8 * to_pairs + tile * 4) * 4,
                        packed_pair<T>(sums[tile][2 * half], sums[tile][2 * half + 1]));
    }
    arrive_as_warp_at(memory.pixel_ring.used(load.stage));
    load.advance(p.stages);
    show_to_matrix_units();
    arrive_as_warp_at(memory.result_ring.used(store.stage));
    store.advance(Plan::result_stages);
  }
}

template <typename T, int steps, int tiles>
__global__ void __launch_bounds__(Plan::threads, 1)
    pointwise_chunks_kernel(T* y, const T* x, const T* w, const T* bias, bool gradient,
                            const __grid_constant__ Plan p) {
  if constexpr (has_warpgroups) {
    extern __shared__ uint8_t shared[];
    const ChunkMemory memory(shared, p);
    memory.create(p);
    __syncthreads();
    const int copying = static_cast<int>(threadIdx.x) - Plan::computing_threads;
    if (copying < 0)
      make_chunks<T, steps, tiles>(memory, w, bias, gradient, p);
    else if (copying == 0)
      copy_chunks(memory, x, p);
    else if (copying == warp_threads)
      store_chunks(memory, y, p);
  } else {
    __trap();
  }
}

// Calls run with the counts of steps and tiles as constants.
template <typename Run>
cudaError_t with_counts(const Plan& p, Run run) {
  constexpr std::integral_constant<int, 2> two;
  constexpr std::integral_constant<int, 3> three;
  constexpr std::integral_constant<int, 4> four;
  constexpr std::integral_constant<int, 7> seven;
  constexpr std::integral_constant<int, 14> fourteen;
  const auto with_tiles = [&](auto steps) {
    return p.made_tiles() == four()    ? run(steps, four)
           : p.made_tiles() == seven() ? run(steps, seven)
                                       : cudaErrorInvalidValue;
  };
  switch (p.made_steps()) {
    case two(): return p.made_tiles() == fourteen() ? run(two, fourteen) : with_tiles(two);
    case three(): return run(three, seven);
    case four(): return with_tiles(four);
    default: return with_tiles(seven);
  }
}

cudaError_t launch(Scalar type, void* y, const void* x, const void* w, const void* bias, const ConvolutionSizes& c,
                   bool gradient, cudaStream_t stream) {
  const Plan p(pixels_of(c), gradient ? c.y_channels : c.x_channels, gradient ? c.x_channels : c.y_channels);
  const auto bytes = static_cast<size_t>(p.shared_bytes());
  return with_16_bits(type, [&]<typename T>(T*) {
    return with_counts(p, [&](auto steps, auto tiles) {
      const auto kernel = pointwise_chunks_kernel<T, decltype(steps)::value, decltype(tiles)::value>;
      if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
      kernel<<<static_cast<unsigned>(p.splits), Plan::threads, bytes, stream>>>(
          static_cast<T*>(y), static_cast<const T*>(x), static_cast<const T*>(w), static_cast<const T*>(bias), gradient,
          p);
      return cudaGetLastError();
    });
  });
}

}  // namespace

cudaError_t pointwise_chunks(Scalar type, void* y, const void* x, const void* w, const void* bias,
                             const ConvolutionSizes& sizes, cudaStream_t stream) {
  return launch(type, y, x, w, bias, sizes, false, stream);
}

cudaError_t pointwise_chunks_dx(Scalar type, void* dx, const void* dy, const void* w, const ConvolutionSizes& sizes,
                                cudaStream_t stream) {
  return launch(type, dx, dy, w, nullptr, sizes, true, stream);
}

}  // namespace plimsoll::cuda
