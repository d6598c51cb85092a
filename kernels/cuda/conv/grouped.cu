#include "kernels/cuda/conv/grouped.h"

#include "kernels/cuda/conv/image_tile.cuh"
#include "kernels/cuda/conv/unit_tiles.cuh"

// conv and conv_dx of groups of 8 channels and more: a matrix product for each group, of the pixels of a tile by all
// taps of all input channels. The tile's input pixels lie in shared memory once for all taps; a row of the product's
// left operand is a pixel of it, a tap further on for each step. Reads x and writes y once but for the rims of tiles.

namespace plimsoll::cuda {
namespace {

struct Grouped {
  ConvolutionSizes sizes;
  GroupedTiles tiles;
};

// What a block makes: a class of pixels of some groups, in every `splits`-th tile.
struct BlockWork {
  int first_group, groups, part, split;
  TapAxis axes[2];

  __device__ explicit BlockWork(const Grouped& g) {
    const GroupedTiles& t = g.tiles;
    Digits digits{blockIdx.x};
    first_group = digits.take(t.group_blocks) * t.block_groups;
    groups = min(t.block_groups, g.sizes.groups - first_group);
    part = digits.take(t.out_parts);
    for (int d = 1; d >= 0; --d) axes[d] = t.axes.at[d][digits.take(t.axes.classes[d])];
    split = static_cast<int>(digits.rest);
  }
  __device__ int taps() const { return axes[0].taps * axes[1].taps; }
};

// Starts the copies of the weights of taps [first, first + count) of the block's class: rows of output channels (of
// dy's channels for a gradient), and in a row a tap's units one behind the other.
template <typename T, bool gradient>
__device__ void copy_weights_async(uint4* to, const T* w, const Grouped& g, const BlockWork& work, int first,
                                   int count) {
  const ConvolutionSizes& c = g.sizes;
  const GroupedTiles& t = g.tiles;
  const int row_items = count * t.tap_units, all = work.groups * t.weight_rows * row_items;
  for (int i = static_cast<int>(threadIdx.x); i < all; i += static_cast<int>(blockDim.x)) {
    const int row_of_all = i / row_items, in_row = i - row_of_all * row_items;
    const int group = row_of_all / t.weight_rows, row = row_of_all - group * t.weight_rows;
    const int local = in_row / t.tap_units, unit = in_row - local * t.tap_units;
    const int tap = first + local, down = tap / work.axes[1].taps, across = tap - down * work.axes[1].taps;
    const int kernel_at = (work.axes[0].tap_first + down * work.axes[0].tap_step) * c.kernel[1] +
                          work.axes[1].tap_first + across * work.axes[1].tap_step;
    const int out = gradient ? row : work.part * t.unit_tiles * unit_channels + row;
    const int x_unit = gradient ? work.part * t.unit_tiles + unit : unit;
    const bool inside = out < c.y_channels && x_unit * unit_channels < c.x_channels;
    const int64_t row_at = (int64_t{work.first_group + group} * c.y_channels + out) * c.taps() + kernel_at;
    const T* from = inside ? w + row_at * c.x_channels + x_unit * unit_channels : w;
    copy_async(to + row_of_all * t.row_units + in_row, from, inside);
  }
}

// For each unit of input channels of each tap: the units from a pixel to where the tap reads it, and from a row of
// weights, or the first of eight, to the tap's.
template <bool gradient>
__device__ void fill_table(int2* table, const Grouped& g, const BlockWork& work, int image_width) {
  const GroupedTiles& t = g.tiles;
  const int all = work.taps() * t.in_units;
  for (int i = static_cast<int>(threadIdx.x); i < all; i += static_cast<int>(blockDim.x)) {
    const int tap = i / t.in_units, unit = i - tap * t.in_units;
    const int down = tap / work.axes[1].taps, across = tap - down * work.axes[1].taps;
    const int local = tap % t.part_taps;
    const int pixel = down * work.axes[0].step * image_width + across * work.axes[1].step;
    table[i] = {pixel * t.pixel_units + unit,
                gradient ? unit * unit_channels * t.row_units + local * t.tap_units : local * t.tap_units + unit};
  }
}

// A warp makes row_tiles times 16 pixels by unit_tiles times 8 channels of one group. Weights that come in one part
// stay for all tiles of the block, and the next tile's pixels arrive while this one's are multiplied.
template <typename T, int unit_tiles, int row_tiles, bool gradient>
__global__ void __launch_bounds__(max_block_warps* warp_threads)
    grouped_kernel(T* __restrict__ out, const T* __restrict__ in, const T* __restrict__ w, const T* __restrict__ bias,
                   const __grid_constant__ Grouped g) {
  extern __shared__ uint4 shared[];
  const ConvolutionSizes& c = g.sizes;
  const GroupedTiles& t = g.tiles;
  const BlockWork work(g);
  const TapAxis &down = work.axes[0], &across = work.axes[1];
  const bool in_parts = work.taps() > t.part_taps;
  uint4* weights = shared + t.image_buffers * t.image_units;
  uint4* all_staged = weights + t.weight_buffers() * t.weight_units;
  int2* table = reinterpret_cast<int2*>(all_staged + t.staged_all_units);
  int* places = reinterpret_cast<int*>(table + t.table_entries);
  const int warp = static_cast<int>(threadIdx.x) / warp_threads, lane = static_cast<int>(threadIdx.x) % warp_threads;
  const int group = warp / t.pixel_warps, first_pixel = (warp - group * t.pixel_warps) * row_tiles * 16;
  const bool works = group < work.groups;

  const int in_group = t.in_units * unit_channels;
  const int64_t in_channels = int64_t{c.groups} * in_group;
  const int image_width = across.span(t.tiles.tile[1]);
  const auto copy_image = [&](int item, int buffer) {
    const TilePlace place(t.tiles, item);
    const ImageTile image{
        {place.first[0] * down.in_stride + down.first, place.first[1] * across.in_stride + across.first},
        {down.span(t.tiles.tile[0]), image_width},
        {down.in_pixels, across.in_pixels},
        in_channels,
        work.groups * t.in_units,
        t.pixel_units};
    const T* first = in + int64_t{place.image} * down.in_pixels * across.in_pixels * in_channels +
                     int64_t{work.first_group} * in_group;
    copy_tile_async(shared + buffer * t.image_units, first, image);
  };
  const auto copy_weights = [&](int first_tap, int buffer) {
    copy_weights_async<T, gradient>(weights + buffer * t.weight_units, w, g, work, first_tap,
                                    min(t.part_taps, work.taps() - first_tap));
  };

  fill_table<gradient>(table, g, work, image_width);
  for (int pixel = static_cast<int>(threadIdx.x); pixel < t.pixels; pixel += static_cast<int>(blockDim.x)) {
    const int y = pixel / t.tiles.tile[1];
    places[pixel] = y << 16 | (pixel - y * t.tiles.tile[1]);
  }
  __syncthreads();
  int pixel_at[row_tiles];
#pragma unroll
  for (int tile = 0; tile < row_tiles; ++tile) {
    const int pixel = first_pixel + tile * 16 + lane % 16;
    const int y = pixel / t.tiles.tile[1], x = pixel - y * t.tiles.tile[1];
    pixel_at[tile] =
        y < t.tiles.tile[0] ? (y * down.in_stride * image_width + x * across.in_stride) * t.pixel_units : 0;
    pixel_at[tile] += min(group, work.groups - 1) * t.in_units;
  }
  const int matrix = lane / 8, row = lane % 8;
  const int weight_row = gradient ? row * t.row_units + matrix / 2 : (matrix / 2 * 8 + row) * t.row_units;
  const int weight_step = gradient ? 2 : 16 * t.row_units;
  const uint4* group_weights = weights + min(group, work.groups - 1) * t.weight_rows * t.row_units + weight_row;

  const int out_group = t.out_units * unit_channels, part_channel = work.part * unit_tiles * unit_channels;
  const int64_t out_channels = int64_t{c.groups} * out_group;
  const int out_height = gradient ? c.x[0] : c.y[0], out_width = gradient ? c.x[1] : c.y[1];
  const int out_units = min(unit_tiles, t.out_units - work.part * unit_tiles);
  T* const first_out = out + int64_t{work.first_group + group} * out_group + part_channel;
  uint4* staged = all_staged + warp * row_tiles * 16 * t.staged_units;

  const bool looks_ahead = t.image_buffers == 2;
  if (!in_parts) copy_weights(0, 0);
  if (looks_ahead) copy_image(work.split, 0);
  commit_copies();
  for (int item = work.split, buffer = 0; item < t.items;
       item += static_cast<int>(t.splits), buffer ^= looks_ahead ? 1 : 0) {
    if (!looks_ahead) copy_image(item, 0);
    if (looks_ahead && item + t.splits < t.items) copy_image(item + static_cast<int>(t.splits), buffer ^ 1);
    if (in_parts) copy_weights(0, 0);
    commit_copies();
    const uint4* image = shared + buffer * t.image_units;
    float sums[row_tiles][unit_tiles][4] = {};
    for (int first_tap = 0, weight_buffer = 0; first_tap < work.taps(); first_tap += t.part_taps, weight_buffer ^= 1) {
      const int next = first_tap + t.part_taps;
      if (in_parts && next < work.taps()) {
        copy_weights(next, weight_buffer ^ 1);
        commit_copies();
        wait_for_copies<1>();
      } else if (looks_ahead && !in_parts) {
        wait_for_copies<1>();
      } else {
        wait_for_copies<0>();
      }
      __syncthreads();
      const uint4* part = group_weights + (in_parts ? weight_buffer * t.weight_units : 0);
      const int begin = first_tap * t.in_units, end = min(next, work.taps()) * t.in_units;
      // Two units of input channels a step; a last one alone takes half a product.
      const int image_entry = lane < 16 ? 0 : 1, weight_entry = matrix % 2;
      int image_at = table[min(begin + image_entry, end - 1)].x,
          weights_at = table[min(begin + weight_entry, end - 1)].y;
      for (int unit = begin; works && unit < end; unit += 2) {
        RightFragments right[(unit_tiles + 1) / 2];
#pragma unroll
        for (int pair = 0; pair < (unit_tiles + 1) / 2; ++pair) {
          const uint4* from = part + weights_at + pair * weight_step;
          // The second half of the last pair may not be there: its addresses repeat the first half's.
          if (2 * pair + 1 == unit_tiles && matrix >= 2) from -= gradient ? 1 : 8 * t.row_units;
          if constexpr (gradient)
            load_matrices_transposed(right[pair].at, from);
          else
            load_matrices(right[pair].at, from);
        }
        LeftFragment left[row_tiles];
#pragma unroll
        for (int tile = 0; tile < row_tiles; ++tile) load_matrices(left[tile].at, image + pixel_at[tile] + image_at);
        image_at = table[min(unit + 2 + image_entry, end - 1)].x;
        weights_at = table[min(unit + 2 + weight_entry, end - 1)].y;
        if (unit + 1 < end) {
#pragma unroll
          for (int tile = 0; tile < row_tiles; ++tile)
#pragma unroll
            for (int i = 0; i < unit_tiles; ++i) multiply_add<T>(sums[tile][i], left[tile], right[i / 2], i % 2);
        } else {
#pragma unroll
          for (int tile = 0; tile < row_tiles; ++tile)
#pragma unroll
            for (int i = 0; i < unit_tiles; ++i) multiply_add_half<T>(sums[tile][i], left[tile], right[i / 2], i % 2);
        }
      }
      __syncthreads();
    }
    if (!works) continue;

      // Through shared memory, so that whole units go out.
#pragma unroll
    for (int i = 0; i < unit_tiles; ++i) {
      const int channel = part_channel + i * unit_channels + lane % 4 * 2;
      float added[2] = {};
      if (bias && channel < out_group) {
        const T* of_group = bias + int64_t{work.first_group + group} * out_group;
        added[0] = widen(of_group[channel]), added[1] = widen(of_group[channel + 1]);
      }
#pragma unroll
      for (int tile = 0; tile < row_tiles; ++tile)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int pixel = tile * 16 + half * 8 + lane / 4;
          auto* words = reinterpret_cast<uint32_t*>(staged + pixel * t.staged_units + i);
          words[lane % 4] = packed_pair<T>(sums[tile][i][2 * half] + added[0], sums[tile][i][2 * half + 1] + added[1]);
        }
    }
    __syncwarp();
    const TilePlace place(t.tiles, item);
    T* out_image = first_out + int64_t{place.image} * out_height * out_width * out_channels;
    for (int i = lane; i < 16 * row_tiles * unit_tiles; i += warp_threads) {
      const int in_warp = i / unit_tiles, unit = i - in_warp * unit_tiles;
      const int in_tile = places[first_pixel + in_warp], tile_y = in_tile >> 16, tile_x = in_tile & 0xffff;
      const int y = place.first[0] + tile_y, x = place.first[1] + tile_x;
      if (tile_y >= t.tiles.tile[0] || y >= down.out_pixels || x >= across.out_pixels || unit >= out_units) continue;
      const int64_t at =
          (int64_t{y} * down.out_step + down.out_first) * out_width + int64_t{x} * across.out_step + across.out_first;
      __stwb(reinterpret_cast<uint4*>(out_image + at * out_channels) + unit, staged[in_warp * t.staged_units + unit]);
    }
    __syncwarp();
  }
  wait_for_copies<0>();
}

template <bool gradient>
cudaError_t launch(Scalar type, void* out, const void* in, const void* w, const void* bias,
                   const ConvolutionSizes& sizes, cudaStream_t stream) {
  const Grouped g{sizes, GroupedTiles(sizes, gradient)};
  const int64_t blocks = g.tiles.blocks();
  if (blocks == 0) return cudaSuccess;
  const size_t bytes = static_cast<size_t>(g.tiles.shared_units()) * sizeof(uint4);
  return with_16_bits(type, [&]<typename T>(T*) {
    return with_unit_tiles(g.tiles.unit_tiles, [&](auto tiles) {
      constexpr int unit_tiles = decltype(tiles)::value, row_tiles = unit_tiles <= 4 ? 4 : 2;
      const auto kernel = grouped_kernel<T, unit_tiles, row_tiles, gradient>;
      if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
      kernel<<<static_cast<unsigned>(blocks), g.tiles.warps * warp_threads, bytes, stream>>>(
          static_cast<T*>(out), static_cast<const T*>(in), static_cast<const T*>(w), static_cast<const T*>(bias), g);
      return cudaGetLastError();
    });
  });
}

}  // namespace

cudaError_t grouped_convolution(Scalar type, void* y, const void* x, const void* w, const void* bias,
                                const ConvolutionSizes& sizes, cudaStream_t stream) {
  return launch<false>(type, y, x, w, bias, sizes, stream);
}

cudaError_t grouped_convolution_dx(Scalar type, void* dx, const void* dy, const void* w, const ConvolutionSizes& sizes,
                                   cudaStream_t stream) {
  return launch<true>(type, dx, dy, w, nullptr, sizes, stream);
}

}  // namespace plimsoll::cuda
