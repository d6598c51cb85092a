#include "kernels/cuda/conv/grouped.h"
#include "kernels/cuda/conv/grouped_runs.h"

#include "kernels/cuda/conv/image_tile.cuh"
#include "kernels/cuda/conv/run_products.cuh"
#include "kernels/cuda/conv/unit_tiles.cuh"

// Convolutions of groups without strides, and their input gradients, by warpgroups of Hopper. A tile of pixels lies in
// shared memory with one plane for each unit of 8 channels: the rows that a tap meets are the plane's, moved by the
// tap's distance, so that no pixel is copied for a tap. Reads a tile and the rim of its taps, the weights once a block,
// and writes the result once.

namespace plimsoll::cuda {
namespace {

// Where a pixel of the run of all images lies, counted from the first zeros of
// its image on.
struct PixelOfRun {
  int image, row, column;

  __device__ PixelOfRun(const GroupedRuns& p, unsigned at) {
    Digits digits{at};
    column = digits.take(p.period[1]);
    row = digits.take(p.period[0]);
    image = static_cast<int>(digits.rest);
  }
};

// Sums of two runs of pixels a warpgroup are under way at once.
constexpr int held = 2;

template <typename T, int out_units, bool gradient>
__device__ void convolve_runs(T* __restrict__ out, const T* __restrict__ in, const T* __restrict__ w,
                              const T* __restrict__ bias, const ConvolutionSizes& c, const GroupedRuns& p) {
  extern __shared__ uint4 shared[];
  constexpr int columns = out_units * unit_channels;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / warp_threads, lane = thread % warp_threads;
  Digits digits{blockIdx.x};
  const int first_group = digits.take(p.group_blocks) * p.block_groups, split = static_cast<int>(digits.rest);
  uint4* weights = shared + p.block_groups * p.in_units * p.plane_units;
  auto* table = reinterpret_cast<uint64_t*>(weights + p.block_groups * p.weight_units);
  uint4* staged = reinterpret_cast<uint4*>(table) + p.table_units() + warp * 16 * odd_units(out_units);
  const int x_group = p.in_units * unit_channels;
  const int64_t in_channels = int64_t{c.groups} * x_group, out_channels = int64_t{c.groups} * columns;

  // Units of terms are ordered by unit of channels, then by tap.
  const int terms = p.taps * p.in_units, batch = static_cast<int>(c.batch);
  for (int i = thread; i < p.block_groups * p.weight_units; i += GroupedRuns::threads) {
    const int n = i % columns, of_column = i / columns, term = of_column % (2 * p.k_pairs),
              group = of_column / (2 * p.k_pairs);
    const int unit = term / p.taps, tap = term - unit * p.taps;
    uint4 value{0, 0, 0, 0};
    if (term < terms) {
      if constexpr (gradient) {
        T parts[unit_channels];
        for (int k = 0; k < unit_channels; ++k)
          parts[k] =
              w[((int64_t{first_group + group} * x_group + unit * unit_channels + k) * p.taps + p.taps - 1 - tap) *
                    columns +
                n];
        memcpy(&value, parts, sizeof value);
      } else {
        value = *reinterpret_cast<const uint4*>(
            w + ((int64_t{first_group + group} * columns + n) * p.taps + tap) * x_group + unit * unit_channels);
      }
    }
    weights[i] = value;
  }
  const auto unit_at = [&](int term) {
    const int unit = term / p.taps, tap = term - unit * p.taps;
    return unit * p.plane_units + tap / c.kernel[1] * p.period[1] + tap % c.kernel[1];
  };
  for (int i = thread; i < p.k_pairs; i += GroupedRuns::threads) {
    const int first = unit_at(2 * i), second = 2 * i + 1 < terms ? unit_at(2 * i + 1) : first;
    table[i] = plain_matrix(static_cast<uint32_t>(first), static_cast<uint32_t>(second - first), 8);
  }

  const uint32_t planes_at = shared_address(shared) >> 4, weights_at = shared_address(weights) >> 4;
  const int all_units = p.block_groups * p.in_units, line_threads = GroupedRuns::threads / all_units;
  const int unit = thread % all_units, first_pixel = thread / all_units;
  const int runs = p.pixels / GroupedRuns::run_rows, products = runs * p.block_groups, group_of_warps = warp / 4;
  for (int64_t item = split; item < p.items; item += p.splits) {
    const unsigned begin = static_cast<unsigned>(item) * static_cast<unsigned>(p.pixels);
    if (first_pixel < line_threads) {
      const PixelOfRun from(p, begin + first_pixel);
      int image = from.image, y = from.row - p.pad[0], x = from.column - p.pad[1];
      const int last_x = p.period[1] - p.pad[1], last_y = p.period[0] - p.pad[0];
      uint4* to = shared + unit * p.plane_units + first_pixel;
      const T* of_group = in + int64_t{first_group} * x_group + unit * unit_channels;
      for (int pixel = first_pixel; pixel < p.in_pixels; pixel += line_threads, to += line_threads) {
        const bool inside = image < batch && static_cast<unsigned>(y) < static_cast<unsigned>(p.in[0]) &&
                            static_cast<unsigned>(x) < static_cast<unsigned>(p.in[1]);
        copy_async(to, inside ? of_group + ((int64_t{image} * p.in[0] + y) * p.in[1] + x) * in_channels : in, inside);
        x += line_threads;
        while (x >= last_x) {
          x -= p.period[1];
          if (++y == last_y) y = -p.pad[0], ++image;
        }
      }
    }
    commit_copies();
    wait_for_copies<0>();
    show_to_matrix_units();
    __syncthreads();
    for (int first = group_of_warps * held; first < products; first += GroupedRuns::warpgroups * held) {
      float sums[held][out_units][4];
      uint32_t left[held], right[held];
#pragma unroll
      for (int i = 0; i < held; ++i) {
        const int product = min(first + i, products - 1), group = product / runs, run = product - group * runs;
        left[i] = planes_at + group * p.in_units * p.plane_units + run * GroupedRuns::run_rows;
        right[i] = weights_at + group * p.weight_units;
      }
      begin_products();
      for (int pair = 0; pair < p.k_pairs; ++pair) {
        const uint64_t entry = table[pair];
#pragma unroll
        for (int i = 0; i < held; ++i)
          start_run_product<T, out_units>(sums[i], entry + left[i],
                                          plain_matrix(right[i] + pair * 2 * columns, columns, 8), pair > 0);
      }
      commit_products();
      wait_for_products<0>();
#pragma unroll
      for (int i = 0; i < held; ++i) settle(sums[i]);
#pragma unroll
      for (int i = 0; i < held; ++i) {
        if (first + i >= products) continue;
        const int group = (first + i) / runs, run = first + i - group * runs;
        __syncwarp();
#pragma unroll
        for (int n = 0; n < out_units; ++n) {
          float added[2] = {};
          if (bias) {
            const T* of_unit = bias + int64_t{first_group + group} * columns + n * unit_channels + lane % 4 * 2;
            added[0] = widen(of_unit[0]), added[1] = widen(of_unit[1]);
          }
#pragma unroll
          for (int half = 0; half < 2; ++half)
            reinterpret_cast<uint32_t*>(staged + (lane / 4 + half * 8) * odd_units(out_units) + n)[lane % 4] =
                packed_pair<T>(sums[i][n][2 * half] + added[0], sums[i][n][2 * half + 1] + added[1]);
        }
        __syncwarp();
        // The first 16 lanes know where the warp's pixels go.
        const PixelOfRun pixel(p,
                               begin + static_cast<unsigned>(run * GroupedRuns::run_rows + warp % 4 * 16 + lane % 16));
        const bool inside = pixel.image < batch && pixel.row < p.out[0] && pixel.column < p.out[1];
        const int place = inside ? (pixel.image * p.out[0] + pixel.row) * p.out[1] + pixel.column : -1;
        T* of_group = out + int64_t{first_group + group} * columns;
#pragma unroll
        for (int first_piece = 0; first_piece < 16 * out_units; first_piece += warp_threads) {
          const int piece = first_piece + lane, in_warp = min(piece / out_units, 15), n = piece - in_warp * out_units;
          const int to = __shfl_sync(whole_warp, place, in_warp);
          if (piece < 16 * out_units && to >= 0)
            __stwb(reinterpret_cast<uint4*>(of_group + to * out_channels) + n,
                   staged[in_warp * odd_units(out_units) + n]);
        }
      }
    }
    __syncthreads();
  }
}

template <typename T, int out_units, bool gradient>
__global__ void __launch_bounds__(GroupedRuns::threads, out_units <= 4 ? 3 : 2)
    grouped_runs_kernel(T* __restrict__ out, const T* __restrict__ in, const T* __restrict__ w,
                        const T* __restrict__ bias, const __grid_constant__ ConvolutionSizes c,
                        const __grid_constant__ GroupedRuns p) {
  if constexpr (has_warpgroups)
    convolve_runs<T, out_units, gradient>(out, in, w, bias, c, p);
  else
    __trap();
}

template <bool gradient>
cudaError_t launch_runs(Scalar type, void* out, const void* in, const void* w, const void* bias,
                        const ConvolutionSizes& c, cudaStream_t stream) {
  const GroupedRuns p(c, gradient);
  if (p.blocks() == 0) return cudaSuccess;
  const size_t bytes = static_cast<size_t>(p.shared_units()) * sizeof(uint4);
  return with_16_bits(type, [&]<typename T>(T*) {
    return with_any_units(p.out_units, [&](auto units) {
      const auto kernel = grouped_runs_kernel<T, decltype(units)::value, gradient>;
      if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
      kernel<<<static_cast<unsigned>(p.blocks()), GroupedRuns::threads, bytes, stream>>>(
          static_cast<T*>(out), static_cast<const T*>(in), static_cast<const T*>(w), static_cast<const T*>(bias), c, p);
      return cudaGetLastError();
    });
  });
}

}  // namespace

cudaError_t grouped_runs(Scalar type, void* y, const void* x, const void* w, const void* bias,
                         const ConvolutionSizes& sizes, cudaStream_t stream) {
  return launch_runs<false>(type, y, x, w, bias, sizes, stream);
}

cudaError_t grouped_runs_dx(Scalar type, void* dx, const void* dy, const void* w, const ConvolutionSizes& sizes,
                            cudaStream_t stream) {
  return launch_runs<true>(type, dx, dy, w, nullptr, sizes, stream);
}

}  // namespace plimsoll::cuda
