#include "kernels/cuda/conv/depthwise.h"

#include "kernels/cuda/conv/depthwise_runs.cuh"
#include "kernels/cuda/conv/unit_tiles.cuh"

// Depthwise conv and conv_dx without strides on the matrix units, while what comes next is copied. A product serves one
// channel: its left operand has 16 neighbours of up to 8 spots of two rows of pixels, its
// right one a channel's weights of a row of the kernel as a band matrix, which makes of them 8 neighbours of two rows
// of results. 7 of 16 terms count for 7 x 7 taps. Reads x and writes y once, but for the rims of columns' tiles and the
// rows between two parts of the run.

namespace plimsoll::cuda {
namespace {

constexpr int threads = DepthwiseOutputRuns::threads, warps = threads / warp_threads;
constexpr int slots = DepthwiseRuns::slots, step_rows = DepthwiseRuns::step_rows;

template <typename T>
__device__ uint32_t bits_of(const T* from) {
  uint16_t bits;
  memcpy(&bits, from, sizeof bits);
  return bits;
}

// Words of the weights of taps d and d + 1 of each row of the kernel, d from -1 on; taps beyond the kernel are zeros,
// and so are all words behind the last plane's.
template <typename T, int kernel>
__device__ void fill_bands(uint32_t* bands, const T* w, int channels, bool gradient) {
  constexpr int taps = kernel * kernel;
  for (int i = static_cast<int>(threadIdx.x); i < (slots + 1) * kernel * (kernel + 1); i += threads) {
    const int d = i % (kernel + 1) - 1, of_slot = i / (kernel + 1), down = of_slot % kernel, slot = of_slot / kernel;
    const int channel = slot < slots ? channel_of_slot(slot, DepthwiseRuns::block_units) : channels;
    const auto weight = [&](int across) -> uint32_t {
      if (channel >= channels || across < 0 || across >= kernel) return 0;
      const int tap = down * kernel + across;
      return bits_of(w + channel * taps + (gradient ? taps - 1 - tap : tap));
    };
    bands[i] = weight(d) | weight(d + 1) << 16;
  }
}

// A lane's place in planes whose ring has the step's first row at `first_row`.
struct StepOfLane {
  int from, from_row, to, to_row;  // from: in units of 16 bytes; to: in words
  int ring, row_units;

  __device__ int rows_of(int row) const { return (row >= ring ? row - ring : row) * row_units; }
};

// Makes the results of a step of a plane, from two rows of pixels to the next two. Each operand meets all pairs of rows
// of results that it belongs to; results replace pixels when all have been read.
template <typename T, int kernel, int pairs>
__device__ void convolve_step(uint4* plane, const RightFragments (&weights)[kernel], float bias, const StepOfLane& at) {
  constexpr int loads = pairs + (kernel - 1) / 2;
  float sums[pairs][4];
#pragma unroll
  for (auto& of_pair : sums)
#pragma unroll
    for (float& sum : of_pair) sum = bias;
  const auto load = [&](LeftFragment& to, int pair) {
    load_matrices(to.at, plane + at.from + at.rows_of(at.from_row + 2 * pair));
  };
  // An operand whose first row is `down` rows below the part's first.
  const auto multiply = [&](const LeftFragment& pixels, int down) {
#pragma unroll
    for (int i = 0; i < pairs; ++i)
      if (const int tap = down - 2 * i; tap >= 0 && tap < kernel)
        multiply_add<T>(sums[i], pixels, weights[tap % kernel], 0);
  };
  LeftFragment above, below;
  load(above, 0);
#pragma unroll
  for (int pair = 0; pair < loads; ++pair) {
    if (pair + 1 < loads) load(below, pair + 1);
    multiply(above, 2 * pair);
    if (pair + 1 == loads) break;
    multiply(LeftFragment{{above.at[1], below.at[0], above.at[3], below.at[2]}}, 2 * pair + 1);
    above = below;
  }
#pragma unroll
  for (int i = 0; i < pairs; ++i) {
    uint32_t* to = reinterpret_cast<uint32_t*>(plane) + at.to + 4 * at.rows_of(at.to_row + 2 * i);
    to[0] = packed_pair<T>(sums[i][0], sums[i][1]);
    to[4 * at.row_units] = packed_pair<T>(sums[i][2], sums[i][3]);
  }
}

// Takes a step's results out of planes, puts the next step's pixels there and starts the copies of those behind them,
// from `first_row` of the ring on. A warp's results lie where its pixels go.
template <typename T>
struct Turn {
  PlaneRows<T> pixels;
  PixelColumn<T> results;
  int line, ring;  // line: elements of a row of results

  __device__ void make(int first_row, bool has_results, int result_numbers, bool has_pixels, bool has_next,
                       int next_numbers) const {
    constexpr int at_once = 2;
    const int step = pixels.at.step;
#pragma unroll 1
    for (int first = pixels.at.first; first < step_rows; first += at_once * step) {
      uint4* at[at_once];
      uint32_t words[at_once][4];
      uint4 vectors[at_once];
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const int row = first + i * step, of_ring = first_row + row;
        if (row >= step_rows) continue;
        at[i] = pixels.plane + (of_ring >= ring ? of_ring - ring : of_ring) * pixels.row_units;
        if (has_results) load_matrices_transposed(words[i], at[i]);
        if (has_pixels) vectors[i] = *pixels.vector(row);
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const int row = first + i * step;
        if (row >= step_rows) continue;
        if (has_pixels) pixels.put(at[i], vectors[i]);
        if (has_results) {
          const int number = __shfl_sync(whole_warp, result_numbers, row);
          if (results.has(number))
            __stwb(reinterpret_cast<uint4*>(results.at(number, line)),
                   uint4{words[i][0], words[i][1], words[i][2], words[i][3]});
        }
        if (has_next) pixels.copy(row, next_numbers);
      }
    }
  }
};

template <typename T, int kernel, int pairs>
__global__ void __launch_bounds__(threads, DepthwiseOutputRuns::blocks_of_processor)
    depthwise_runs_kernel(T* __restrict__ out, const T* __restrict__ in, const T* __restrict__ w,
                          const T* __restrict__ bias, int batch, const __grid_constant__ DepthwiseOutputRuns p) {
  extern __shared__ __align__(128) uint4 shared[];
  constexpr int slot_words = kernel * (kernel + 1), ring = step_rows + kernel - 1;
  Digits digits{blockIdx.x};
  const int first_unit = digits.take(p.unit_blocks) * DepthwiseRuns::block_units;
  const int column = digits.take(p.column_tiles) * p.width, split = static_cast<int>(digits.rest);
  const int units = min(DepthwiseRuns::block_units, p.units - first_unit), first_channel = first_unit * unit_channels;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / warp_threads, lane = thread % warp_threads;
  uint4* planes = shared + p.stage_units();
  auto* bands = reinterpret_cast<uint32_t*>(planes + p.planes_units());
  auto* biases = reinterpret_cast<float*>(bands + (slots + 1) * slot_words);
  const int first_row = split * p.block_steps * step_rows;
  const int end_row = static_cast<int>(min(p.run_rows, int64_t{first_row} + p.block_steps * step_rows));

  const int channels = p.units * unit_channels;
  const WarpUnit unit(p.row_units, warps);
  const Turn<T> turn{
      {unit,
       pixels_of_unit(in, p.in, p, unit.unit, p.image_units, column + p.first[1], p.period, units, first_channel,
                      batch),
       p.in[1] * channels, p.row_units, shared, planes, p.plane_units},
      pixels_of_unit(out, p.out, p, unit.unit, p.image_units, column, p.width, units, first_channel, batch),
      p.out[1] * channels,
      ring};
  StepRows in_rows(p, first_row), out_rows = in_rows;
  uint4 above[kernel - 1];
  turn.pixels.load_above(above, in_rows.number(p, p.first[0], p.in[0]));
  in_rows.advance(p, kernel - 1);
  turn.pixels.copy_all(in_rows.number(p, p.first[0], p.in[0]));
  commit_copies();
  // The weights lie where planes will be while words are made of them.
  constexpr int taps = kernel * kernel;
  const auto* of_block = reinterpret_cast<const uint4*>(w + int64_t{first_channel} * taps);
  for (int i = thread; i < units * taps; i += threads) planes[i] = __ldg(of_block + i);
  for (int slot = thread; slot < slots; slot += threads) {
    const int channel = channel_of_slot(slot, DepthwiseRuns::block_units);
    biases[slot] = bias && channel < units * unit_channels ? widen(bias[first_channel + channel]) : 0.0f;
  }
  __syncthreads();
  fill_bands<T, kernel>(bands, reinterpret_cast<const T*>(planes), units * unit_channels, p.gradient);
  __syncthreads();
  clear_ends(planes, p.plane_units, ring * p.row_units);
  turn.pixels.put_above(above);

  // Lane 8 m + i gives the address of spot i's row of matrix m: of row r or r + 1, columns 0 to 7 or 8 to 15.
  const SpotPlace from(p, lane % 8, 2 * pairs), to(p, lane / 4, 2 * pairs);
  StepOfLane at{from.unit + lane / 16 + lane / 8 % 2 * p.row_units, 0, to.unit * 4 + lane % 4, 0, ring, p.row_units};
  // Rows of a right operand are columns of pixels, its columns those of results: taps of the distance. Of a thread's
  // two words at most one is of taps: that of the near columns or of the 8 behind them.
  const int near = 2 * (lane % 4) - lane / 4, far = near + 8;
  const bool has_near = near >= -1, has_word = has_near ? near < kernel : far < kernel;
  const uint32_t near_bits = has_near ? ~0u : 0u;
  const uint32_t* of_lane = bands + (has_word ? 1 + (has_near ? near : far) : slots * slot_words);
  const int slot_step = has_word ? slot_words : 0;
  int ring_row = 0;
  const auto below = [&](int rows) { return ring_row + rows >= ring ? ring_row + rows - ring : ring_row + rows; };
  for (int row = first_row;; row += step_rows) {
    const bool has_results = row > first_row, has_pixels = row < end_row, has_next = row + step_rows < end_row;
    wait_for_copies<0>();
    in_rows.advance(p, step_rows);
    turn.make(below(kernel - 1), has_results, out_rows.number(p, 0, p.out[0]), has_pixels, has_next,
              in_rows.number(p, p.first[0], p.in[0]));
    if (has_results) out_rows.advance(p, step_rows);
    commit_copies();
    if (!has_pixels) break;
    __syncthreads();
    at.from_row = ring_row + from.row, at.to_row = ring_row + to.row;
#pragma unroll
    for (int slot = warp; slot < slots; slot += warps) {
      const uint32_t* of_slot = of_lane + slot * slot_step;
      RightFragments weights[kernel];
#pragma unroll
      for (int down = 0; down < kernel; ++down) {
        const uint32_t word = of_slot[down * (kernel + 1)];
        weights[down] = {{word & near_bits, word & ~near_bits, 0, 0}};
      }
      convolve_step<T, kernel, pairs>(planes + slot * p.plane_units, weights, biases[slot], at);
    }
    ring_row = below(step_rows);
    __syncthreads();
  }
}

cudaError_t launch(Scalar type, void* out, const void* in, const void* w, const void* bias, const ConvolutionSizes& c,
                   bool gradient, cudaStream_t stream) {
  const DepthwiseOutputRuns p(c, gradient);
  if (p.blocks() == 0) return cudaSuccess;
  const auto bytes = static_cast<size_t>(p.shared_bytes(c));
  return with_16_bits(type, [&]<typename T>(T*) {
    return with_kernel_size(c.kernel[0], [&](auto size) {
      return with_row_pairs(p, [&](auto pairs) {
        const auto kernel = depthwise_runs_kernel<T, decltype(size)::value, decltype(pairs)::value>;
        if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
        kernel<<<static_cast<unsigned>(p.blocks()), threads, bytes, stream>>>(
            static_cast<T*>(out), static_cast<const T*>(in), static_cast<const T*>(w), static_cast<const T*>(bias),
            static_cast<int>(c.batch), p);
        return cudaGetLastError();
      });
    });
  });
}

}  // namespace

cudaError_t depthwise_runs(Scalar type, void* y, const void* x, const void* w, const void* bias,
                           const ConvolutionSizes& sizes, cudaStream_t stream) {
  return launch(type, y, x, w, bias, sizes, false, stream);
}

cudaError_t depthwise_runs_dx(Scalar type, void* dx, const void* dy, const void* w, const ConvolutionSizes& sizes,
                              cudaStream_t stream) {
  return launch(type, dx, dy, w, nullptr, sizes, true, stream);
}

}  // namespace plimsoll::cuda
