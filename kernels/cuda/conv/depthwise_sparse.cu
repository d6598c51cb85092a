#include "kernels/cuda/conv/depthwise_sparse.cuh"

#include "kernels/cuda/conv/depthwise.h"
#include "kernels/cuda/conv/depthwise_planes.cuh"

// Depthwise conv and conv_dx on the matrix units, pixels as they lie in memory. A product serves two channels: its left
// operand has the weights of a row of taps for 8 neighbouring results of both, and its right one 16 pixels of each of 8
// strips, of which a pixel's word has both channels. Weights of one channel are zeros for the other, which a sparse
// operand leaves out: 7 of 16 terms count for 7 x 7 taps. Rows of pixels come by the copy engine and go by it, while
// others are multiplied; x and y move once, but for the rims of tiles.

namespace plimsoll::cuda {
namespace {

// Of the 504 that three threads, one of each warpgroup, have together.
constexpr int computing_registers = 232, copying_registers = 40;
constexpr int pairs = DepthwiseSparse::warp_channels / 2;
constexpr int groups = 2;  // of 8 strips, of which a warp's products make one each
constexpr int pixel_words = 4;

// Rows of results of two tiles, which a block makes one after the other, and a row of pixels that they may need.
struct SparseRow {
  int first, end;              // results of the block that are still to be made
  int tile;                    // the first of the two
  int first_result, results;   // rows
  int first_pixel, row, rows;  // of pixels

  __device__ SparseRow(const DepthwiseSparse& p) {
    const int64_t split = static_cast<int>(blockIdx.x) / p.channel_blocks;
    first = static_cast<int>(p.shares * split / p.splits) * p.share_rows;
    end = static_cast<int>(p.shares * (split + 1) / p.splits) * p.share_rows;
    find(p);
  }
  __device__ bool is_there() const { return first < end; }
  __device__ void find(const DepthwiseSparse& p) {
    Digits digits{static_cast<unsigned>(first)};
    first_result = digits.take(p.out[0]);
    tile = static_cast<int>(digits.rest) * DepthwiseSparse::tiles_at_once;
    results = min(p.out[0] - first_result, end - first);
    first_pixel = first_result + p.first[0];
    row = 0, rows = results + p.kernel - 1;
  }
  __device__ void next_tiles(const DepthwiseSparse& p) {
    first += results;
    if (is_there()) find(p);
  }
  __device__ bool has_pixels(const DepthwiseSparse& p) const {
    return static_cast<unsigned>(first_pixel + row) < static_cast<unsigned>(p.in[0]);
  }
  // The row of results that this row of pixels completes; negative where there is none.
  __device__ int finished(const DepthwiseSparse& p) const { return row - (p.kernel - 1); }
};

// The first of a block's channels: blocks beside each other read the same pixels at the same time.
__device__ inline int first_channel(const DepthwiseSparse& p) {
  return static_cast<int>(blockIdx.x) % p.channel_blocks * DepthwiseSparse::block_channels;
}

// Rows of pixels on their way to products, and of results on their way to memory, with barriers for each: that it is
// there, and that it has been read. Words of the block's weights lie behind.
struct SparseMemory {
  uint8_t *pixels, *results;
  uint32_t* weights;
  Barrier *full, *empty, *made, *stored;

  __device__ SparseMemory(void* shared, const DepthwiseSparse& p) {
    constexpr uint32_t border = DepthwiseSparse::border_bytes;
    pixels = static_cast<uint8_t*>(shared) + (border - shared_address(shared) % border) % border;
    results = pixels + p.stages * p.stage_bytes;
    weights = reinterpret_cast<uint32_t*>(results + DepthwiseSparse::result_stages * p.result_bytes);
    full = reinterpret_cast<Barrier*>(weights + p.weight_bytes() / 4);
    empty = full + p.stages;
    made = empty + p.stages;
    stored = made + DepthwiseSparse::result_stages;
  }
  __device__ void create(const DepthwiseSparse& p) const {
    constexpr int zeros = DepthwiseSparse::turn * DepthwiseSparse::pixel_bytes / 16;
    const int thread = static_cast<int>(threadIdx.x);
    for (int i = thread; i < p.stages * zeros; i += DepthwiseSparse::threads)
      reinterpret_cast<uint4*>(pixels + i / zeros * p.stage_bytes +
                               p.first_zero * DepthwiseSparse::pixel_bytes)[i % zeros] = uint4{0, 0, 0, 0};
    if (thread != 0) return;
    for (int i = 0; i < p.stages; ++i) set_up_barrier(full + i, 1), set_up_barrier(empty + i, DepthwiseSparse::warps);
    for (int i = 0; i < DepthwiseSparse::result_stages; ++i)
      set_up_barrier(made + i, DepthwiseSparse::warps), set_up_barrier(stored + i, 1);
    show_barriers_to_copies();
  }
};

// By one thread each: asks for rows of pixels, and has rows of results stored.
__device__ inline void copy_rows(const SparseMemory& memory, const CUtensorMap& in, const DepthwiseSparse& p) {
  fetch_map(in);
  const int channel = first_channel(p);
  const int bytes = DepthwiseSparse::tiles_at_once * p.images * p.across.pixels * DepthwiseSparse::pixel_bytes;
  RingPlace load;
  for (SparseRow at(p); at.is_there(); at.next_tiles(p)) {
    const SparseTilePlace first(p, at.tile), second(p, at.tile + 1);
    for (; at.row < at.rows; ++at.row) {
      if (!at.has_pixels(p)) continue;
      uint8_t* pixels = memory.pixels + load.stage * p.stage_bytes;
      Barrier* full = memory.full + load.stage;
      const int row = at.first_pixel + at.row;
      wait_at(memory.empty + load.stage, load.parity ^ 1);
      arrive_with_copies(full, bytes);
      copy_box(pixels, in, channel, first.column + p.across.first, row, first.image, full);
      copy_box(pixels + p.second_in * DepthwiseSparse::pixel_bytes, in, channel, second.column + p.across.first, row,
               second.image, full);
      load.advance(p.stages);
    }
  }
}
__device__ inline void store_rows(const SparseMemory& memory, const CUtensorMap& out, const DepthwiseSparse& p) {
  fetch_map(out);
  const int channel = first_channel(p);
  RingPlace store, read;
  bool has_stored = false;
  for (SparseRow at(p); at.is_there(); at.next_tiles(p)) {
    const SparseTilePlace first(p, at.tile), second(p, at.tile + 1);
    for (int row = at.first_result; row < at.first_result + at.results; ++row) {
      const uint8_t* results = memory.results + store.stage * p.result_bytes;
      wait_at(memory.made + store.stage, store.parity);
      store_box(results, out, channel, first.column, row, first.image);
      store_box(results + p.second_out * DepthwiseSparse::pixel_bytes, out, channel, second.column, row, second.image);
      asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 1;" ::: "memory");
      if (has_stored) {
        arrive_at(memory.stored + read.stage);
        read.advance(DepthwiseSparse::result_stages);
      }
      has_stored = true;
      store.advance(DepthwiseSparse::result_stages);
    }
  }
  wait_for_stored_boxes();
}

// Where a thread reads pixels of a stage and writes results of one. The 16 threads that read or write at once are in
// both tiles, whose pixels lie half a turn of banks apart.
struct SparsePlaces {
  uint32_t from[groups][pixel_words], to[groups][2];
  bool writes[groups][2];

  __device__ SparsePlaces(const uint8_t* pixels, const uint8_t* results, const DepthwiseSparse& p) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads, warp = static_cast<int>(threadIdx.x) / warp_threads;
    const auto place = [&](const uint8_t* first, int pixel) {
      return shared_address(first) + place_in_pixel(pixel, warp / 2) + warp % 2 * 8;
    };
    // The strip of a column of a product.
    const auto strip_of = [&](int column, int group) {
      return SparseStrip(p, column / 2 % 2, DepthwiseSparse::tile_strips / 2 * group + column / 4 * 2 + column % 2);
    };
#pragma unroll
    for (int group = 0; group < groups; ++group) {
      const SparseStrip read = strip_of(lane / 4, group);
#pragma unroll
      for (int i = 0; i < pixel_words; ++i) {
        const int x = read.strip * DepthwiseSparse::strip + p.across.shift + 4 * i + lane % 4;
        const bool inside = read.valid && x >= 0 && x < p.across.pixels;
        from[group][i] = place(pixels, inside ? read.tile * p.second_in + read.image * p.across.pixels + x
                                              : p.first_zero + ((read.tile * DepthwiseSparse::half_turn + x) &
                                                                (DepthwiseSparse::turn - 1)));
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const SparseStrip written = strip_of(lane % 4 * 2 + i, group);
        const int x = written.strip * DepthwiseSparse::strip + lane / 4;
        writes[group][i] = written.valid && x < p.width;
        to[group][i] = place(results, written.tile * p.second_out + written.image * p.width + x);
      }
    }
  }
};

// Makes words of the weights of taps d and d + 1 of each row of taps, d from -1 on; taps beyond are zeros, and so are
// those of channels behind the last one. A thread asks for all that it needs at once.
template <typename T, int kernel>
__device__ void make_weight_words(uint32_t* words, const T* w, const DepthwiseSparse& p) {
  constexpr int taps = kernel * kernel, row_words = kernel + 1, threads = DepthwiseSparse::computing_threads;
  constexpr int count = DepthwiseSparse::block_channels * kernel * row_words,
                of_thread = (count + threads - 1) / threads;
  const int channel = first_channel(p), channels = min(DepthwiseSparse::block_channels, p.channels - channel);
  const auto* weights = reinterpret_cast<const uint16_t*>(w + int64_t{channel} * taps);
  uint32_t made[of_thread];
#pragma unroll
  for (int n = 0; n < of_thread; ++n) {
    const int i = static_cast<int>(threadIdx.x) + n * threads;
    const int line = i / row_words, across = i - line * row_words - 1, of = line / kernel, down = line - of * kernel;
    const auto weight = [&](int at) -> uint32_t {
      const int tap = down * kernel + at;
      const bool is_there = of < channels && at >= 0 && at < kernel;
      return is_there ? __ldg(weights + of * taps + (p.gradient ? taps - 1 - tap : tap)) : 0;
    };
    made[n] = weight(across) | weight(across + 1) << 16;
  }
#pragma unroll
  for (int n = 0; n < of_thread; ++n)
    if (const int i = static_cast<int>(threadIdx.x) + n * threads; i < count) words[i] = made[n];
  asm volatile("bar.sync 1, %0;" ::"n"(threads) : "memory");
}

// A thread's words of weights, left operands of each row of taps, and its channels' biases as a product adds them.
template <int kernel>
struct SparseWeights {
  uint32_t of[kernel][pairs][4];
  float biases[pairs][4];

  template <typename T>
  __device__ void load(const uint32_t* words, const T* bias, const DepthwiseSparse& p) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads, warp = static_cast<int>(threadIdx.x) / warp_threads;
    // Of a thread's two words of a row at most one is of taps: that of the near pixels or of the 8 behind them.
    const int near = 2 * (lane % 4) - lane / 4, far = near + 8;
    const bool has_near = near >= -1 && near < kernel, has_far = !has_near && far < kernel;
    const uint32_t near_bits = has_near ? ~0u : 0u, far_bits = has_far ? ~0u : 0u;
    const uint32_t* of_lane = words + (has_near ? near + 1 : has_far ? far + 1 : 0);
#pragma unroll
    for (int pair = 0; pair < pairs; ++pair)
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        const int of_block = warp * DepthwiseSparse::warp_channels + 2 * pair + second;
        const int channel = first_channel(p) + of_block;
        biases[pair][2 * second] = biases[pair][2 * second + 1] =
            bias && channel < p.channels ? widen(bias[channel]) : 0.0f;
#pragma unroll
        for (int down = 0; down < kernel; ++down) {
          const uint32_t word = of_lane[(of_block * kernel + down) * (kernel + 1)];
          of[down][pair][second] = word & near_bits;
          of[down][pair][second + 2] = word & far_bits;
        }
      }
  }
};

// Sums of a row of results, of which a thread has those of one column of 8 strips.
using SparseSums = float[groups][pairs][4];

// Adds the products of a row of pixels with all rows of taps; sums of the row of results that begins here are begun. Of
// sums in turn, `row` is the place of that one.
template <typename T, int kernel>
__device__ void add_products(SparseSums (&sums)[kernel], const SparseMemory& memory, const SparsePlaces& places,
                             const SparseWeights<kernel>& weights, int stage, int row, const DepthwiseSparse& p) {
  uint2 loaded[groups][pixel_words];
#pragma unroll
  for (int group = 0; group < groups; ++group)
#pragma unroll
    for (int i = 0; i < pixel_words; ++i)
      asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                   : "=r"(loaded[group][i].x), "=r"(loaded[group][i].y)
                   : "r"(places.from[group][i] + stage * p.stage_bytes)
                   : "memory");
#pragma unroll
  for (int group = 0; group < groups; ++group) {
    uint32_t pixels[pairs][pixel_words];
#pragma unroll
    for (int i = 0; i < pixel_words; ++i) {
      pixels[0][i] = moved_word(loaded[group][i].x, p.all_bytes[0]);
      pixels[1][i] = moved_word(loaded[group][i].y, p.all_bytes[1]);
    }
    if (group == groups - 1) arrive_as_warp_at(memory.empty + stage);
#pragma unroll
    for (int down = 0; down < kernel; ++down)
#pragma unroll
      for (int pair = 0; pair < pairs; ++pair) {
        float(&sum)[4] = sums[(row - down + kernel) % kernel][group][pair];
        if (down == 0)
          multiply_add_sparse<T>(sum, weights.of[down][pair], pixels[pair], weights.biases[pair]);
        else
          multiply_add_sparse<T>(sum, weights.of[down][pair], pixels[pair], sum);
      }
  }
}

template <typename T, int kernel>
__device__ void multiply_rows(const SparseMemory& memory, const T* w, const T* bias, const DepthwiseSparse& p) {
  const SparsePlaces places(memory.pixels, memory.results, p);
  make_weight_words<T, kernel>(memory.weights, w, p);
  SparseWeights<kernel> weights;
  weights.load(memory.weights, bias, p);
  SparseSums sums[kernel] = {};  // those of results above the first row are never read
  RingPlace load, store;
  for (SparseRow at(p); at.is_there(); at.next_tiles(p)) {
    for (int first_row = 0; first_row < at.rows; first_row += kernel) {
#pragma unroll
      for (int row = 0; row < kernel; ++row) {
        at.row = first_row + row;
        if (at.row >= at.rows) break;
        if (at.has_pixels(p)) {
          wait_at(memory.full + load.stage, load.parity);
          add_products<T, kernel>(sums, memory, places, weights, load.stage, row, p);
          load.advance(p.stages);
        } else {
#pragma unroll
          for (auto& of_group : sums[row])
#pragma unroll
            for (int pair = 0; pair < pairs; ++pair)
#pragma unroll
              for (int i = 0; i < 4; ++i) of_group[pair][i] = weights.biases[pair][i];
        }
        if (at.finished(p) < 0) continue;
        const SparseSums& made = sums[(row + 1) % kernel];
        wait_at(memory.stored + store.stage, store.parity ^ 1);
#pragma unroll
        for (int group = 0; group < groups; ++group)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            if (places.writes[group][i])
              asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(places.to[group][i] + store.stage * p.result_bytes),
                           "r"(packed_pair<T>(made[group][0][i], made[group][0][2 + i])),
                           "r"(packed_pair<T>(made[group][1][i], made[group][1][2 + i]))
                           : "memory");
        show_to_matrix_units();
        arrive_as_warp_at(memory.made + store.stage);
        store.advance(DepthwiseSparse::result_stages);
      }
    }
  }
}

template <typename T, int kernel>
__global__ void __launch_bounds__(DepthwiseSparse::threads, 1)
    depthwise_sparse_kernel(const __grid_constant__ CUtensorMap in, const __grid_constant__ CUtensorMap out, const T* w,
                            const T* bias, const __grid_constant__ DepthwiseSparse p) {
  if constexpr (has_warpgroups) {
    extern __shared__ uint8_t shared[];
    const SparseMemory memory(shared, p);
    memory.create(p);
    __syncthreads();
    if (threadIdx.x >= DepthwiseSparse::computing_threads) {
      give_registers<copying_registers>();
      const int thread = static_cast<int>(threadIdx.x) - DepthwiseSparse::computing_threads;
      if (thread == 0) copy_rows(memory, in, p);
      if (thread == warp_threads) store_rows(memory, out, p);
    } else {
      take_registers<computing_registers>();
      multiply_rows<T, kernel>(memory, w, bias, p);
    }
  } else {
    __trap();
  }
}

cudaError_t launch(Scalar type, void* out, const void* in, const void* w, const void* bias, const ConvolutionSizes& c,
                   bool gradient, cudaStream_t stream) {
  const DepthwiseSparse p(c, gradient);
  if (p.blocks() == 0) return cudaSuccess;
  CUtensorMap pixels, results;
  constexpr int channels = DepthwiseSparse::block_channels;
  const ImageBoxes in_boxes{{c.batch, p.in[0], p.in[1], p.channels}, {p.images, 1, p.across.pixels}, {1, 1}, channels};
  const ImageBoxes out_boxes{{c.batch, p.out[0], p.out[1], p.channels}, {p.images, 1, p.width}, {1, 1}, channels};
  if (const cudaError_t error = map_image(pixels, in, in_boxes)) return error;
  if (const cudaError_t error = map_image(results, out, out_boxes)) return error;
  const auto bytes = static_cast<size_t>(p.shared_bytes());
  return with_16_bits(type, [&]<typename T>(T*) {
    return with_kernel_size(p.kernel, [&](auto size) {
      const auto kernel = depthwise_sparse_kernel<T, decltype(size)::value>;
      if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
      kernel<<<static_cast<unsigned>(p.blocks()), DepthwiseSparse::threads, bytes, stream>>>(
          pixels, results, static_cast<const T*>(w), static_cast<const T*>(bias), p);
      return cudaGetLastError();
    });
  });
}

}  // namespace

cudaError_t depthwise_sparse(Scalar type, void* y, const void* x, const void* w, const void* bias,
                             const ConvolutionSizes& sizes, cudaStream_t stream) {
  return launch(type, y, x, w, bias, sizes, false, stream);
}

cudaError_t depthwise_sparse_dx(Scalar type, void* dx, const void* dy, const void* w, const ConvolutionSizes& sizes,
                                cudaStream_t stream) {
  return launch(type, dx, dy, w, nullptr, sizes, true, stream);
}

}  // namespace plimsoll::cuda
