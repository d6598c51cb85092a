#include "kernels/cuda/conv/depthwise.h"
#include "kernels/cuda/conv/depthwise_planes.cuh"
#include "kernels/cuda/conv/sum_parts.h"
#include "kernels/cuda/conv/unit_tiles.cuh"

// Depthwise conv_dw without strides on the matrix units: for each channel the products of x and dy over all pixels, at
// each tap. A product's terms are 16 pixels of a row. Its left operand has 4 rows of x by 4 shifts of two pixels each,
// its right one 4 rows of dy by shifts of none and of one pixel: together all shifts from 0 to 7, in both dimensions
// those that the rows have from each other. x and dy move once, but for the rims of tiles.

namespace plimsoll::cuda {
namespace {

constexpr int row_block = DepthwiseWeightBands::row_block, row_blocks = DepthwiseWeightBands::row_blocks;
constexpr int line = DepthwiseWeightBands::line_units * 4;  // words of a row

// Adds up a plane. A block of rows of dy meets `under` blocks of rows of x; sums are by the distance of the blocks.
template <typename T, int under>
__device__ void add_plane(float (&sums)[under][4], const uint32_t* x, const uint32_t* dy, unsigned pick, int chunks) {
#pragma unroll 2
  for (int chunk = 0; chunk < chunks; ++chunk, x += 8, dy += 8) {
    LeftFragment left[row_blocks + under - 1];
#pragma unroll
    for (int block = 0; block < row_blocks + under - 1; ++block) {
      const uint32_t* from = x + block * row_block * line;
      left[block] = {{from[0], from[2 * line], from[4], from[2 * line + 4]}};
    }
#pragma unroll
    for (int block = 0; block < row_blocks; ++block) {
      const uint32_t* from = dy + block * row_block * line;
      const RightFragments right{{__byte_perm(from[-1], from[0], pick), __byte_perm(from[3], from[4], pick), 0, 0}};
#pragma unroll
      for (int distance = 0; distance < under; ++distance)
        multiply_add<T>(sums[distance], left[block + distance], right, 0);
    }
  }
}

template <typename T, int kernel, int held_planes>
__global__ void __launch_bounds__(DepthwisePlanes::threads, 2)
    depthwise_bands_dw_kernel(float* __restrict__ partial, const T* __restrict__ x, const T* __restrict__ dy,
                              int64_t batch, const __grid_constant__ DepthwiseWeightBands p) {
  extern __shared__ uint4 shared[];
  constexpr int under = DepthwiseWeightBands::blocks_under(kernel);
  Digits digits{blockIdx.x};
  const int first_unit = digits.take(p.unit_blocks) * p.block_units, split = static_cast<int>(digits.rest);
  const int units = min(p.block_units, p.units - first_unit), first_channel = first_unit * unit_channels;
  const int64_t channels = int64_t{p.units} * unit_channels;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / warp_threads, lane = thread % warp_threads;
  uint4* dy_planes = shared + p.slots * p.plane_units;
  uint4* nowhere = dy_planes + p.slots * p.dy_plane_units;
  for (int i = thread; i < p.slots * (p.plane_units + p.dy_plane_units); i += DepthwisePlanes::threads)
    shared[i] = uint4{0, 0, 0, 0};
  __syncthreads();

  const PlaneRow to_x(shared, p.plane_units, p.row_units, p.block_units, nowhere),
      to_dy(dy_planes, p.dy_plane_units, p.row_units, p.block_units, nowhere);
  const PlaneColumns in_columns(p.columns / 8, p.period / 8);
  // Rows of a left operand are rows of x and shifts, its columns pixels; columns of a right one shifts and rows of dy.
  const int g = lane / 4, t = lane % 4, x_at = g / 4 * line + g % 4 + t, dy_at = g % 4 * line + t;
  const unsigned pick = g / 4 == 0 ? 0x7654 : 0x5432;  // of the words before and here: this one, or halves of both
  float sums[held_planes][under][4] = {};
  for (int item = split; item < p.items; item += static_cast<int>(p.splits)) {
    const PlanesPlace place(p, item);
    PlaneSource source{place.image,
                       place.row + p.first[0],
                       place.column + p.first[1],
                       {p.in[0], p.in[1]},
                       p.images,
                       static_cast<int>(batch),
                       p.period,
                       first_channel,
                       units,
                       channels};
    fill_planes(to_x, x, source, in_columns, p.in_rows);
    source.y = place.row, source.x = place.column, source.width = p.width;
    source.size[0] = p.out[0], source.size[1] = p.out[1];
    fill_planes(to_dy, dy, source, in_columns, p.rows);
    __syncthreads();
#pragma unroll
    for (int held = 0; held < held_planes; ++held) {
      const int slot = warp + held * DepthwisePlanes::warps;
      if (slot >= p.slots) continue;
      const auto* of_x = reinterpret_cast<const uint32_t*>(shared + slot * p.plane_units) + x_at;
      const auto* of_dy = reinterpret_cast<const uint32_t*>(dy_planes + slot * p.dy_plane_units) + dy_at;
      for (int run = 0; run < p.runs; ++run, of_x += 4 * p.run_units, of_dy += 4 * p.run_units)
        add_plane<T, under>(sums[held], of_x, of_dy, pick, p.run_chunks);
    }
    __syncthreads();
  }

  // Terms of a tap are those whose rows of x and dy have its distance.
  auto* all = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int held = 0; held < held_planes; ++held) {
    const int slot = warp + held * DepthwisePlanes::warps;
    if (slot >= p.slots) continue;
#pragma unroll
    for (int distance = 0; distance < under; ++distance)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        all[((slot * under + distance) * 16 + lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] =
            sums[held][distance][i];
  }
  __syncthreads();
  constexpr int taps = kernel * kernel;
  for (int i = thread; i < p.slots * taps; i += DepthwisePlanes::threads) {
    const int slot = i / taps, tap = i - slot * taps, down = tap / kernel, across = tap - down * kernel;
    const int channel = channel_of_slot(slot, p.block_units);
    if (channel >= units * unit_channels) continue;
    float total = 0;
#pragma unroll
    for (int distance = 0; distance < under; ++distance)
#pragma unroll
      for (int row = 0; row < row_block; ++row) {
        const int dy_row = distance * row_block + row - down;
        if (dy_row < 0 || dy_row >= row_block) continue;
        total += all[((slot * under + distance) * 16 + row * 4 + across / 2) * 8 + across % 2 * 4 + dy_row];
      }
    partial[(int64_t{split} * channels + first_channel + channel) * taps + tap] = total;
  }
}

cudaError_t launch(Scalar type, Scalar to, void* dw, const void* x, const void* dy, const ConvolutionSizes& c,
                   const DepthwiseWeightBands& p, void* workspace, cudaStream_t stream) {
  const auto bytes = static_cast<size_t>(p.shared_bytes(c));
  auto* partial = static_cast<float*>(workspace);
  return with_16_bits(type, [&]<typename T>(T*) {
    const cudaError_t error = with_kernel_size(c.kernel[0], [&](auto size) {
      const auto kernel = depthwise_bands_dw_kernel<T, decltype(size)::value, depthwise_units>;
      if (const cudaError_t refused = allow_shared(kernel, bytes)) return refused;
      kernel<<<static_cast<unsigned>(p.blocks()), DepthwisePlanes::threads, bytes, stream>>>(
          partial, static_cast<const T*>(x), static_cast<const T*>(dy), c.batch, p);
      return cudaGetLastError();
    });
    if (error != cudaSuccess) return error;
    return sum_parts(to, dw, partial, p.splits, c.weights(), stream);
  });
}

}  // namespace

cudaError_t depthwise_bands_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                               const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream) {
  return launch(type, to, dw, x, dy, sizes, DepthwiseWeightBands(sizes), workspace, stream);
}

}  // namespace plimsoll::cuda
