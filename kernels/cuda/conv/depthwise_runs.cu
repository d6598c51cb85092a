#include "kernels/cuda/conv/depthwise.h"

#include "kernels/cuda/conv/depthwise_runs.cuh"
#include "kernels/cuda/conv/unit_tiles.cuh"

// Depthwise conv and conv_dx without strides on the matrix units of Hopper, while the copy engine brings what comes
// next. A product serves one channel: its left operand has 16 neighbours of up to 8 spots of two rows of pixels, its
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

// Makes the results of a step of some planes at once, from two rows of pixels to the next two. Each operand meets all
// pairs of rows of results that it belongs to; results replace pixels when all have been read.
template <typename T, int kernel, int pairs, int together>
__device__ void convolve_step(uint4* const (&planes)[together], const RightFragments (&weights)[together][kernel],
                              const float (&biases)[together], const StepOfLane& at) {
  constexpr int loads = pairs + (kernel - 1) / 2;
  float sums[together][pairs][4];
#pragma unroll
  for (int n = 0; n < together; ++n)
#pragma unroll
    for (int i = 0; i < pairs; ++i)
#pragma unroll
      for (float& sum : sums[n][i]) sum = biases[n];
  LeftFragment above[together], below[together];
  const auto load = [&](LeftFragment(&to)[together], int pair) {
    const int offset = at.from + at.rows_of(at.from_row + 2 * pair);
#pragma unroll
    for (int n = 0; n < together; ++n) load_matrices(to[n].at, planes[n] + offset);
  };
  // An operand whose first row is `down` rows below the part's first.
  const auto multiply = [&](float(&of_plane)[pairs][4], const LeftFragment& pixels,
                            const RightFragments(&of_weights)[kernel], int down) {
#pragma unroll
    for (int i = 0; i < pairs; ++i)
      if (const int tap = down - 2 * i; tap >= 0 && tap < kernel)
        multiply_add<T>(of_plane[i], pixels, of_weights[tap % kernel], 0);
  };
  load(above, 0);
#pragma unroll
  for (int pair = 0; pair < loads; ++pair) {
    if (pair + 1 < loads) load(below, pair + 1);
#pragma unroll
    for (int n = 0; n < together; ++n) multiply(sums[n], above[n], weights[n], 2 * pair);
    if (pair + 1 == loads) break;
#pragma unroll
    for (int n = 0; n < together; ++n) {
      const LeftFragment between{{above[n].at[1], below[n].at[0], above[n].at[3], below[n].at[2]}};
      multiply(sums[n], between, weights[n], 2 * pair + 1);
      above[n] = below[n];
    }
  }
#pragma unroll
  for (int i = 0; i < pairs; ++i) {
    const int offset = at.to + 4 * at.rows_of(at.to_row + 2 * i);
#pragma unroll
    for (int n = 0; n < together; ++n) {
      uint32_t* to = reinterpret_cast<uint32_t*>(planes[n]) + offset;
      to[0] = packed_pair<T>(sums[n][i][0], sums[n][i][1]);
      to[4 * at.row_units] = packed_pair<T>(sums[n][i][2], sums[n][i][3]);
    }
  }
}

// Where results of a block go.
template <typename T>
struct Results {
  T* out;  // the block's first channel
  int64_t batch, channels;
  int units, column;

  // Takes a step's results from the planes, which begin at `ring_row` there and at `row` of the run. A unit is taken by
  // the warp that fills it next.
  __device__ void write(const DepthwiseRuns& p, const uint4* lane_plane, int ring_row, int ring, int row) const {
    const int warp = static_cast<int>(threadIdx.x) / warp_threads, lane = static_cast<int>(threadIdx.x) % warp_threads;
    RingWalk from(ring_row, p.row_units, ring);
    RowOfRun to(p, row);
    to.advance(p, warp / p.row_units);
#pragma unroll 4
    for (int i = warp; i < step_rows * p.row_units; i += warps) {
      uint32_t words[4];
      load_matrices_transposed(words, lane_plane + from.row * p.row_units + from.unit);
      const int side = from.unit * p.image_of_unit >> 16;
      const int of_image = (from.unit - side * p.image_units) * unit_channels + lane / 4, x = column + of_image;
      const int64_t image = int64_t{to.group} * p.images + side;
      if (to.y < p.out[0] && image < batch && of_image < p.width && x < p.out[1] && lane % 4 < units)
        __stwb(reinterpret_cast<uint4*>(out + ((image * p.out[0] + to.y) * p.out[1] + x) * channels) + lane % 4,
               uint4{words[0], words[1], words[2], words[3]});
      to.advance(p, from.advance(warps, p.row_units, ring));
    }
  }
};

template <typename T, int kernel, int pairs>
__device__ void convolve_run(T* out, const CUtensorMap& map, const T* w, const T* bias, int64_t batch,
                             const DepthwiseOutputRuns& p) {
  extern __shared__ __align__(128) uint4 shared[];
  constexpr int slot_words = kernel * (kernel + 1), warp_slots = slots / warps, together = 2;
  constexpr int ring = step_rows + kernel - 1;
  Digits digits{blockIdx.x};
  const int first_unit = digits.take(p.unit_blocks) * DepthwiseRuns::block_units;
  const int column = digits.take(p.column_tiles) * p.width, split = static_cast<int>(digits.rest);
  const int units = min(DepthwiseRuns::block_units, p.units - first_unit), first_channel = first_unit * unit_channels;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / warp_threads, lane = thread % warp_threads;
  uint4* planes = shared + p.stage_units();
  auto* barrier = reinterpret_cast<Barrier*>(planes + p.planes_units());
  auto* bands = reinterpret_cast<uint32_t*>(barrier + 2);
  auto* biases = reinterpret_cast<float*>(bands + (slots + 1) * slot_words);

  if (thread == 0) {
    set_up_barrier(barrier, 1);
    show_barriers_to_copies();
  }
  __syncthreads();
  const int first_row = split * p.block_steps * step_rows;
  const int end_row = static_cast<int>(min(p.run_rows, int64_t{first_row} + p.block_steps * step_rows));
  const RowBoxes boxes{map, first_channel, column + p.first[1], p.first[0], p.period};
  const auto start_copies = [&](int row, int rows) {
    if (warp != 0) return;
    if (lane == 0) arrive_with_copies(barrier, boxes.bytes(p, rows));
    __syncwarp();
    boxes.start(shared, p, row, rows, barrier);
  };
  start_copies(first_row, kernel - 1);
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
  // What the last spot of a plane's last row reads behind it times zeros must be numbers.
  for (int i = thread; i < p.planes_units(); i += threads) planes[i] = uint4{0, 0, 0, 0};
  __syncthreads();

  // Lane 8 m + i gives the address of spot i's row of matrix m: of row r or r + 1, columns 0 to 7 or 8 to 15.
  const SpotPlace from(p, lane % 8, 2 * pairs), to(p, lane / 4, 2 * pairs);
  StepOfLane at{from.unit + lane / 16 + lane / 8 % 2 * p.row_units, 0, to.unit * 4 + lane % 4, 0, ring, p.row_units};
  // Rows of a right operand are columns of pixels, its columns those of results: taps of the distance.
  const int near = 2 * (lane % 4) - lane / 4, far = near + 8;
  const bool has_near = near >= -1 && near < kernel, has_far = far < kernel;
  const uint32_t* zeros = bands + slots * slot_words;
  uint4* const lane_plane = planes + lane * p.plane_units;
  const Results<T> results{out + first_channel, batch, int64_t{p.units} * unit_channels, units, column};

  wait_at(barrier, 0);
  fill_rows<warps>(lane_plane, shared, p.row_units, 0, ring, kernel - 1);
  __syncthreads();
  start_copies(first_row + kernel - 1, step_rows);
  uint32_t parity = 1;
  int ring_row = 0;
  const auto below = [&](int rows) { return ring_row + rows >= ring ? ring_row + rows - ring : ring_row + rows; };
  for (int row = first_row; row < end_row; row += step_rows, parity ^= 1) {
    if (row > first_row) {
      results.write(p, lane_plane, ring_row, ring, row - step_rows);
      __syncwarp();
      ring_row = below(step_rows);
    }
    wait_at(barrier, parity);
    fill_rows<warps>(lane_plane, shared, p.row_units, below(kernel - 1), ring, step_rows);
    __syncthreads();
    if (row + step_rows < end_row) start_copies(row + step_rows + kernel - 1, step_rows);
    at.from_row = ring_row + from.row, at.to_row = ring_row + to.row;
#pragma unroll
    for (int first = 0; first < warp_slots; first += together) {
      uint4* of_planes[together];
      RightFragments weights[together][kernel];
      float of_biases[together];
#pragma unroll
      for (int n = 0; n < together; ++n) {
        const int slot = warp + (first + n) * warps;
        of_planes[n] = planes + slot * p.plane_units;
        of_biases[n] = biases[slot];
        const uint32_t* of_slot = bands + slot * slot_words + 1;
        const uint32_t *of_near = has_near ? of_slot + near : zeros, *of_far = has_far ? of_slot + far : zeros;
#pragma unroll
        for (int down = 0; down < kernel; ++down)
          weights[n][down] = {{of_near[down * (kernel + 1)], of_far[down * (kernel + 1)], 0, 0}};
      }
      convolve_step<T, kernel, pairs, together>(of_planes, weights, of_biases, at);
    }
    __syncthreads();
  }
  results.write(p, lane_plane, ring_row, ring, first_row + (end_row - first_row - 1) / step_rows * step_rows);
}

template <typename T, int kernel, int pairs>
__global__ void __launch_bounds__(threads, DepthwiseOutputRuns::blocks_of_processor(kernel))
    depthwise_runs_kernel(T* __restrict__ out, const __grid_constant__ CUtensorMap map, const T* __restrict__ w,
                          const T* __restrict__ bias, int64_t batch, const __grid_constant__ DepthwiseOutputRuns p) {
  if constexpr (has_warpgroups)
    convolve_run<T, kernel, pairs>(out, map, w, bias, batch, p);
  else
    __trap();
}

cudaError_t launch(Scalar type, void* out, const void* in, const void* w, const void* bias, const ConvolutionSizes& c,
                   bool gradient, cudaStream_t stream) {
  const DepthwiseOutputRuns p(c, gradient);
  if (p.blocks() == 0) return cudaSuccess;
  CUtensorMap map;
  if (const cudaError_t error =
          map_pixels(map, in, c.batch, p.in[0], p.in[1], c.groups, DepthwiseRuns::slots, p.period))
    return error;
  const auto bytes = static_cast<size_t>(p.shared_bytes(c));
  return with_16_bits(type, [&]<typename T>(T*) {
    return with_kernel_size(c.kernel[0], [&](auto size) {
      return with_row_pairs(p, [&](auto pairs) {
        const auto kernel = depthwise_runs_kernel<T, decltype(size)::value, decltype(pairs)::value>;
        if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
        kernel<<<static_cast<unsigned>(p.blocks()), threads, bytes, stream>>>(
            static_cast<T*>(out), map, static_cast<const T*>(w), static_cast<const T*>(bias), c.batch, p);
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
