#include "kernels/cuda/conv/grouped.h"

#include "kernels/cuda/conv/image_tile.cuh"
#include "kernels/cuda/conv/sum_parts.h"
#include "kernels/cuda/conv/unit_tiles.cuh"

// conv_dw of groups of 8 channels and more: for each group a matrix product over all pixels, of x's channels at each
// tap by dy's channels. Blocks take turns of tiles of pixels, whose copies run while the tile before is multiplied;
// their sums are added up in a second launch. Reads x and dy once for each part of the taps, but for the rims of tiles.

namespace plimsoll::cuda {
namespace {

struct GroupedWeights {
  ConvolutionSizes sizes;
  GroupedWeightTiles tiles;
};

template <typename T, int unit_tiles, int row_tiles>
__global__ void __launch_bounds__(max_dw_warps* warp_threads, 1)
    grouped_dw_kernel(float* __restrict__ partial, const T* __restrict__ x, const T* __restrict__ dy,
                      const __grid_constant__ GroupedWeights g) {
  extern __shared__ uint4 shared[];
  const ConvolutionSizes& c = g.sizes;
  const GroupedWeightTiles& t = g.tiles;
  const TapAxis &down = t.axes.at[0][0], &across = t.axes.at[1][0];

  Digits digits{blockIdx.x};
  const int first_group = digits.take(t.group_blocks) * t.block_groups, y_part = digits.take(t.y_parts),
            first_tap = digits.take(t.tap_parts) * t.part_taps;
  const int split = static_cast<int>(digits.rest);
  const int groups = min(t.block_groups, c.groups - first_group), taps = min(t.part_taps, c.taps() - first_tap);

  // The taps' rectangle.
  const int last_tap = first_tap + taps - 1, top = first_tap / c.kernel[1], bottom = last_tap / c.kernel[1];
  const int left = top == bottom ? first_tap % c.kernel[1] : 0;
  const int right = top == bottom ? last_tap % c.kernel[1] : c.kernel[1] - 1;
  const int image_width = (t.tiles.tile[1] - 1) * across.in_stride + (right - left) * across.step + 1;

  const int warp = static_cast<int>(threadIdx.x) / warp_threads, lane = static_cast<int>(threadIdx.x) % warp_threads;
  const int group = warp / t.group_warps, first_row_tile = (warp - group * t.group_warps) * row_tiles;
  const int units = taps * t.x_units;
  const bool works = group < groups && 2 * first_row_tile < units;
  const int some_group = min(group, groups - 1);
  const int matrix = lane / 8, row = lane % 8;

  int* pixel_at = reinterpret_cast<int*>(shared + 2 * (t.x_tile_units + t.y_tile_units));
  for (int pixel = static_cast<int>(threadIdx.x); pixel < t.pixels; pixel += static_cast<int>(blockDim.x)) {
    const int y = pixel / t.tiles.tile[1], at = pixel - y * t.tiles.tile[1];
    pixel_at[pixel] =
        y < t.tiles.tile[0] ? (y * down.in_stride * image_width + at * across.in_stride) * t.x_pixel_units : 0;
  }
  // From a pixel to where this lane's rows of the left operands are read. Rows beyond the last are computed in vain.
  int unit_at[row_tiles];
#pragma unroll
  for (int tile = 0; tile < row_tiles; ++tile) {
    const int unit = min(2 * (first_row_tile + tile) + matrix % 2, units - 1);
    const int tap = first_tap + unit / t.x_units, tap_down = tap / c.kernel[1],
              tap_across = tap - tap_down * c.kernel[1];
    unit_at[tile] = ((tap_down - top) * down.step * image_width + (tap_across - left) * across.step) * t.x_pixel_units +
                    some_group * t.x_units + unit % t.x_units;
  }

  const int x_group = t.x_units * unit_channels, y_group = t.y_units * unit_channels;
  const int64_t x_channels = int64_t{c.groups} * x_group, y_channels = int64_t{c.groups} * y_group;
  const int y_valid = min(unit_tiles, t.y_units - y_part * unit_tiles);
  const auto copy_item = [&](int item, int buffer) {
    const TilePlace place(t.tiles, item);
    const int(&first)[2] = place.first;
    const ImageTile x_tile{{first[0] * down.in_stride + down.first + top * down.step,
                            first[1] * across.in_stride + across.first + left * across.step},
                           {(t.tiles.tile[0] - 1) * down.in_stride + (bottom - top) * down.step + 1, image_width},
                           {c.x[0], c.x[1]},
                           x_channels,
                           groups * t.x_units,
                           t.x_pixel_units};
    copy_tile_async(shared + buffer * t.x_tile_units,
                    x + int64_t{place.image} * c.x[0] * c.x[1] * x_channels + int64_t{first_group} * x_group, x_tile);
    uint4* y_to = shared + 2 * t.x_tile_units + buffer * t.y_tile_units;
    const T* y_image = dy + int64_t{place.image} * c.y[0] * c.y[1] * y_channels + int64_t{first_group} * y_group +
                       int64_t{y_part} * unit_tiles * unit_channels;
    // Rows up to the tile's last pixel, of which the last may be a part of a row and zeros.
    for (TileWalk at(t.tiles.tile[1], groups * unit_tiles); at.down * t.tiles.tile[1] + at.across < t.pixels;
         at.next()) {
      const int of_group = at.unit / unit_tiles, unit = at.unit - of_group * unit_tiles;
      const int y_at = first[0] + at.down, x_at = first[1] + at.across;
      const bool inside = at.down < t.tiles.tile[0] && y_at < c.y[0] && x_at < c.y[1] && unit < y_valid;
      const T* from =
          inside ? y_image + (int64_t{y_at} * c.y[1] + x_at) * y_channels + of_group * y_group + unit * unit_channels
                 : dy;
      copy_async(y_to + (at.down * t.tiles.tile[1] + at.across) * t.y_pixel_units + at.unit, from, inside);
    }
    commit_copies();
  };

  float sums[row_tiles][unit_tiles][4] = {};
  int buffer = 0;
  copy_item(split, 0);
  for (int item = split; item < t.items; item += static_cast<int>(t.splits), buffer ^= 1) {
    if (item + t.splits < t.items) {
      copy_item(item + static_cast<int>(t.splits), buffer ^ 1);
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    __syncthreads();
    const uint4* x_tile = shared + buffer * t.x_tile_units;
    const uint4* y_tile = shared + 2 * t.x_tile_units + buffer * t.y_tile_units + some_group * unit_tiles + matrix / 2;
    for (int first = 0; works && first < t.pixels; first += 16) {
      RightFragments of_dy[(unit_tiles + 1) / 2];
      const int dy_pixel = first + matrix % 2 * 8 + row;
#pragma unroll
      for (int pair = 0; pair < (unit_tiles + 1) / 2; ++pair) {
        const uint4* from = y_tile + dy_pixel * t.y_pixel_units + 2 * pair;
        if (2 * pair + 1 == unit_tiles && matrix >= 2) --from;  // not there: repeats the first half
        load_matrices_transposed(of_dy[pair].at, from);
      }
      const int x_at = pixel_at[first + matrix / 2 * 8 + row];
#pragma unroll
      for (int tile = 0; tile < row_tiles; ++tile) {
        LeftFragment of_x;
        load_matrices_transposed(of_x.at, x_tile + x_at + unit_at[tile]);
#pragma unroll
        for (int i = 0; i < unit_tiles; ++i) multiply_add<T>(sums[tile][i], of_x, of_dy[i / 2], i % 2);
      }
    }
    __syncthreads();
  }
  if (!works) return;

  float* mine = partial + split * c.weights();
#pragma unroll
  for (int tile = 0; tile < row_tiles; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int unit = 2 * (first_row_tile + tile) + half;
      if (unit >= units) continue;
      const int tap = first_tap + unit / t.x_units;
      const int channel = unit % t.x_units * unit_channels + lane / 4;
#pragma unroll
      for (int i = 0; i < unit_tiles; ++i)
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int out = (y_part * unit_tiles + i) * unit_channels + lane % 4 * 2 + k;
          if (out >= c.y_channels) continue;
          const int64_t weight_row = (int64_t{first_group + group} * c.y_channels + out) * c.taps() + tap;
          mine[weight_row * c.x_channels + channel] = sums[tile][i][2 * half + k];
        }
    }
}

}  // namespace

cudaError_t grouped_convolution_dw(Scalar type, Scalar to, void* dw, const void* x, const void* dy,
                                   const ConvolutionSizes& sizes, void* workspace, cudaStream_t stream) {
  const GroupedWeights g{sizes, GroupedWeightTiles(sizes)};
  const size_t bytes = static_cast<size_t>(g.tiles.shared_units()) * sizeof(uint4);
  auto* partial = static_cast<float*>(workspace);
  return with_16_bits(type, [&]<typename T>(T*) {
    const cudaError_t error = with_unit_tiles(g.tiles.unit_tiles, [&](auto tiles) {
      constexpr int unit_tiles = decltype(tiles)::value, row_tiles = unit_tiles <= 4 ? 4 : 2;
      const auto kernel = grouped_dw_kernel<T, unit_tiles, row_tiles>;
      if (const cudaError_t refused = allow_shared(kernel, bytes)) return refused;
      kernel<<<static_cast<unsigned>(g.tiles.blocks()), g.tiles.warps * warp_threads, bytes, stream>>>(
          partial, static_cast<const T*>(x), static_cast<const T*>(dy), g);
      return cudaGetLastError();
    });
    if (error != cudaSuccess) return error;
    return sum_parts(to, dw, partial, g.tiles.splits, sizes.weights(), stream);
  });
}

}  // namespace plimsoll::cuda
