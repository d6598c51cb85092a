#include "kernels/cuda/conv/grouped_squares.h"

#include "kernels/cuda/common/line_boxes.cuh"
#include "kernels/cuda/common/short_boxes.cuh"
#include "kernels/cuda/conv/grouped.h"
#include "kernels/cuda/conv/grouped_lines.cuh"
#include "kernels/cuda/conv/two_matrices.cuh"
#include "kernels/cuda/conv/unit_tiles.cuh"

// Input gradients of 3 x 3 convolutions of groups of up to 24 channels with a stride of 2, on Hopper. Of a square of 2
// x 2 pixels one has the four taps at the corners, its neighbours two each, and the last the one in the middle: there
// are no products with zeros. Reads lines of dy once, but for one more at a block's end, and writes dx once, in boxes.

namespace plimsoll::cuda {
namespace {

constexpr int stride = GroupedSquares::stride;

// A right operand: 8 channels of dy by as many of dx of a tap of a group, as groups that may be joined have them, with
// zeros between those.
template <typename T, int units>
__device__ uint32_t tap_weights(const T* of_block, const GroupedSquares& p, int group, bool is_there, int tap,
                                int y_unit, int x_unit) {
  constexpr int channels = units * unit_channels, taps = LineRing::kernel * LineRing::kernel;
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, width = channels / p.joined;
  const int outer = y_unit * unit_channels + lane / 4;
  const int inner = x_unit * unit_channels + lane % 4 * 2 - outer / width * width;
  uint32_t word = 0;
  if (is_there && inner >= 0 && inner < width)
    word = *reinterpret_cast<const uint32_t*>(of_block + ((group * channels + outer) * taps + tap) * width + inner);
  return transposed_matrix(word);
}

// Of two neighbouring pixels the one that the two outer taps read, or that of the middle one.
enum Neighbour { Outer, Middle };

// The weights of a group: of each tap, by unit of dy and by unit of dx, from those of a block in shared memory. group:
// of the block's.
template <int units>
struct SquareWeights {
  uint32_t at[LineRing::kernel][LineRing::kernel][units][units];

  template <typename T>
  __device__ void load(const T* of_block, const GroupedSquares& p, int group, bool is_there) {
#pragma unroll
    for (int down = 0; down < LineRing::kernel; ++down)
#pragma unroll
      for (int across = 0; across < LineRing::kernel; ++across)
#pragma unroll
        for (int of_y = 0; of_y < units; ++of_y)
#pragma unroll
          for (int of_x = 0; of_x < units; ++of_x)
            at[down][across][of_y][of_x] =
                tap_weights<T, units>(of_block, p, group, is_there, down * LineRing::kernel + across, of_y, of_x);
  }
  // By a pixel's and by dy's places in the square.
  __device__ const uint32_t (&of(Neighbour row, Neighbour column, int dy_row, int dy_column) const)[units][units] {
    return at[tap_of(row, dy_row)][tap_of(column, dy_column)];
  }

 private:
  static constexpr int tap_of(Neighbour pixel, int dy) { return pixel == Middle ? 1 : dy == 1 ? 0 : 2; }
};

// Pixels of dy under 16 squares, of one group: of each of the 2 x 2 the units two by two, and of an odd count the last
// ones of both across.
template <int units>
struct SquareFragments {
  LeftFragment pairs[2][2], last[2];

  // Of one of the two lines; `at` is where this thread finds its first pixel.
  __device__ void load(uint32_t at, int line, int unit, bool second, int pixel_bytes) {
    if constexpr (units > 1) {
#pragma unroll
      for (int e = 0; e < 2; ++e)
        load_matrices_at(pairs[line][e].at, at + static_cast<uint32_t>(e * pixel_bytes + (unit + second) * 16));
    }
    if constexpr (units % 2 != 0)
      load_matrices_at(last[line].at, at + static_cast<uint32_t>((second ? pixel_bytes : 0) + (unit + units - 1) * 16));
  }
};

// Adds to the sums of the two pixels of a row of squares, of a group; those of the second are `to_middle` further.
// own: the pixel of dy, of the two across and down, that the middle tap reads.
template <typename T, int units, Neighbour row, int own>
__device__ void multiply_squares(float (*sums)[4], int to_middle, const SquareFragments<units>& dy,
                                 const SquareWeights<units>& w) {
  constexpr int first_line = row == Outer ? 0 : own, last_line = row == Outer ? 1 : own, last = units - 1;
#pragma unroll
  for (int d = first_line; d <= last_line; ++d) {
    if constexpr (units > 1) {
#pragma unroll
      for (int e = 0; e < 2; ++e)
#pragma unroll
        for (Neighbour column : {Outer, Middle}) {
          if (column == Middle && e != own) continue;
#pragma unroll
          for (int n = 0; n < units; ++n) {
            const auto& of_tap = w.of(row, column, d, e);
            multiply_add<T>(sums[column * to_middle + n], dy.pairs[d][e], RightFragments{{of_tap[0][n], of_tap[1][n]}},
                            0);
          }
        }
    }
    if constexpr (units % 2 != 0) {
#pragma unroll
      for (int n = 0; n < units; ++n)
        multiply_add<T>(sums[n], dy.last[d],
                        RightFragments{{w.of(row, Outer, d, 0)[last][n], w.of(row, Outer, d, 1)[last][n]}}, 0);
    }
  }
  if constexpr (units % 2 != 0) {
    constexpr int half = 2 * own;
#pragma unroll
    for (int n = 0; n < units; ++n) {
      float(&sum)[4] = sums[to_middle + n];
      if constexpr (row == Outer) {
        const auto &above = dy.last[0].at, &below = dy.last[1].at;
        multiply_add<T>(sum, LeftFragment{{above[half], above[half + 1], below[half], below[half + 1]}},
                        RightFragments{{w.of(row, Middle, 0, own)[last][n], w.of(row, Middle, 1, own)[last][n]}}, 0);
      } else {
        const auto& line = dy.last[own].at;
        multiply_add_half<T>(sum, LeftFragment{{line[half], line[half + 1]}},
                             RightFragments{{w.of(row, Middle, own, own)[last][n]}}, 0);
      }
    }
  }
}

// Where a warp leaves a tile's pixels in shared memory, from which the copy engine takes them. Boxes of 64 channels
// have unit u of pixel p at place u ^ (p % 8), so that few of the squares' pixels lie in the same banks.
template <typename T, int units, bool odd_boxes>
class SquareResults {
 public:
  // unit: the warp's first one of the block's.
  __device__ SquareResults(uint8_t* tile, const GroupedSquares& p, int unit)
      : tile_(reinterpret_cast<uint4*>(tile)),
        pixel_units_(p.block_units()),
        line_pixels_(stride * p.columns),
        unit_(unit) {
    const int square = static_cast<int>(threadIdx.x) % GroupedSquares::tile_squares;
    pixel_ = square / p.columns * stride * line_pixels_ + square % p.columns * stride;
  }
  // Sums of one pixel of the squares; `moved`: by so many bytes.
  __device__ void stage(const float (*sums)[4], int row, int column, int moved) const {
    const int second = static_cast<int>(threadIdx.x) % warp_threads / 16;
    const int pixel = pixel_ + row * line_pixels_ + column;
    uint4* tile = tile_ + moved / 16;
    uint32_t words[units][2];
#pragma unroll
    for (int n = 0; n < units; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) words[n][half] = packed_pair<T>(sums[n][2 * half], sums[n][2 * half + 1]);
#pragma unroll
    for (int n = 0; n + 1 < units; n += 2)
      store_matrices(tile + place(pixel, unit_ + n + second),
                     {words[n][0], words[n][1], words[n + 1][0], words[n + 1][1]});
    if constexpr (units % 2 != 0)
      store_two_matrices(tile + place(pixel, unit_ + units - 1), words[units - 1][0], words[units - 1][1]);
  }

 private:
  uint4* tile_;
  int pixel_units_, line_pixels_, pixel_, unit_;

  __device__ int place(int pixel, int unit) const {
    if constexpr (odd_boxes) return pixel * pixel_units_ + unit;
    constexpr int box_units = GroupedSquares::box_units;
    const int box = unit / box_units;
    return (box * GroupedSquares::tile_pixels + pixel) * box_units + (unit % box_units ^ pixel % box_units);
  }
};

// The weights of a block lie where results and lines will, until all warps have theirs in registers.
struct WeightBarriers {
  Barrier there, read;

  __device__ void set_up(int warps) {
    set_up_barrier(&there, 1);
    set_up_barrier(&read, warps);
  }
};

template <typename T, int units, bool middle_first, bool odd_boxes>
__device__ void multiply_tiles(const CUtensorMap& dx, WeightBarriers& of_weights, uint8_t* memory, LineReader& lines,
                               const GroupedSquares& p, const SquareBlock& mine) {
  constexpr int groups = GroupedSquares::warp_groups(units), own = middle_first ? 0 : 1, to_middle = groups * units;
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
  const bool second = lane >= 16;
  const int warp = __shfl_sync(whole_warp, static_cast<int>(threadIdx.x) / warp_threads, 0);
  const int part = warp % p.parts, pixel_warp = warp / p.parts;
  SquareWeights<units> weights[groups];
  wait_at(&of_weights.there, 0);
#pragma unroll
  for (int g = 0; g < groups; ++g) {
    const int group = part * groups + g;
    weights[g].load(reinterpret_cast<const T*>(memory), p, group, mine.first_group + group < p.groups);
  }
  arrive_as_warp_at(&of_weights.read);
  const int tile_bytes = p.tile_bytes();
  uint8_t* staged = memory + pixel_warp * GroupedSquares::tiles_in_memory * tile_bytes;
  const SquareResults<T, groups * units, odd_boxes> results(staged, p, part * groups * units);
  const uint32_t ring = shared_address(memory + p.staged_bytes());
  const bool stores = part == 0 && lane == 0;
  const int square_row = lane % 16 / p.columns, square_column = lane % 16 % p.columns;
  int moved = 0;
  for (int tile = mine.first_tile + pixel_warp; tile < mine.end_tile;
       tile += p.pixel_warps, moved = tile_bytes - moved) {
    const SquarePlace place(p, tile, mine.first_line);
    lines.give_back_before(place.line);
    lines.wait_for(place.line + p.rows);
    // Squares beyond the image's are computed as others, and not stored.
    const int column = min(place.column + square_column, p.squares[1] - 1);
    uint32_t at[2];
#pragma unroll
    for (int d = 0; d < 2; ++d)
      at[d] = ring + static_cast<uint32_t>(p.place_in_ring(place.line + square_row + d) * p.line_bytes +
                                           column * p.pixel_bytes);
    const auto make = [&]<Neighbour row>(std::integral_constant<Neighbour, row>) {
      constexpr int first_line = row == Outer ? 0 : own, last_line = row == Outer ? 1 : own;
      float sums[2 * to_middle][4] = {};
#pragma unroll
      for (int g = 0; g < groups; ++g) {
        SquareFragments<units> dy;
#pragma unroll
        for (int d = first_line; d <= last_line; ++d)
          dy.load(at[d], d, (part * groups + g) * units, second, p.pixel_bytes);
        multiply_squares<T, units, row, own>(sums + g * units, to_middle, dy, weights[g]);
      }
      const auto place_of = [](Neighbour each) { return (each == Middle) != middle_first ? 1 : 0; };
      results.stage(sums, place_of(row), place_of(Outer), moved);
      results.stage(sums + to_middle, place_of(row), place_of(Middle), moved);
    };
    make(std::integral_constant<Neighbour, Outer>());
    make(std::integral_constant<Neighbour, Middle>());
    show_to_copies();
    // Behind the barrier the tile before has been read, too, and the next one may take its place.
    if (stores) wait_for_box_reads();
    asm volatile("bar.sync %0, %1;" ::"r"(pixel_warp + 1), "r"(p.parts * warp_threads) : "memory");
    if (!stores) continue;
    for (int box = 0; box < p.boxes(); ++box)
      store_box(staged + moved + box * (tile_bytes / p.boxes()), dx,
                mine.channel + box * GroupedSquares::box_units * unit_channels, stride * place.column,
                stride * place.row, place.image);
    commit_boxes();
  }
  if (stores) wait_for_box_reads();
  lines.give_back_before(mine.last_line + p.stage_lines);
}

template <typename T, int units, bool middle_first, bool odd_boxes>
__global__ void __launch_bounds__(GroupedSquares::max_threads, 1)
    grouped_squares_kernel(const __grid_constant__ CUtensorMap dx, const __grid_constant__ CUtensorMap dy,
                           const T* __restrict__ w, const __grid_constant__ GroupedSquares p) {
  if constexpr (has_warpgroups) {
    extern __shared__ __align__(1024) uint8_t memory[];
    __shared__ LineBarriers barriers;
    __shared__ WeightBarriers of_weights;
    const SquareBlock mine(p, static_cast<int>(blockIdx.x));
    if (threadIdx.x == 0) {
      barriers.set_up(p.stages, p.warps());
      of_weights.set_up(p.warps());
      show_barriers_to_copies();
    }
    __syncthreads();
    const int warp = static_cast<int>(threadIdx.x) / warp_threads;
    if (warp < p.warps()) {
      LineReader lines(barriers, p);
      multiply_tiles<T, units, middle_first, odd_boxes>(dx, of_weights, memory, lines, p, mine);
    } else if (threadIdx.x % warp_threads == 0) {
      const int row_bytes = p.weight_row_bytes(), first = mine.first_group * units * unit_channels,
                bytes = min(p.block_groups, p.groups - mine.first_group) * units * unit_channels * row_bytes;
      arrive_with_copies(&of_weights.there, bytes);
      copy_bytes(memory, reinterpret_cast<const uint8_t*>(w) + int64_t{first} * row_bytes, bytes, &of_weights.there);
      wait_at(&of_weights.read, 0);
      LineLoader(memory + p.staged_bytes(), barriers, dy, p, mine.channel, mine.first_line).load_up_to(mine.last_line);
    }
  } else {
    __trap();
  }
}

cudaError_t map_squares(CUtensorMap& map, const void* dx, const GroupedSquares& p, int64_t batch, int64_t channels) {
  const int down = stride * p.rows, across = stride * p.columns;
  if (p.has_odd_boxes())
    return map_line_boxes(map, dx, {batch, p.out[0], p.out[1], channels}, p.block_channels(), across, down);
  return map_image(map, dx, ImageBoxes{{batch, p.out[0], p.out[1], channels}, {1, down, across}, {1, 1}});
}

// Calls visit with the kernel for groups of so many units, which have odd boxes where they are three.
template <typename T, typename Visit>
cudaError_t with_kernel(const GroupedSquares& p, Visit visit) {
  return with_line_units<LineRing::max_output_units>(p.units, [&](auto units) {
    constexpr int count = decltype(units)::value;
    if constexpr (count % 2 != 0 && count > 1) {
      if (p.has_odd_boxes())
        return visit(p.middle_first ? grouped_squares_kernel<T, count, true, true>
                                    : grouped_squares_kernel<T, count, false, true>);
    }
    return visit(p.middle_first ? grouped_squares_kernel<T, count, true, false>
                                : grouped_squares_kernel<T, count, false, false>);
  });
}

}  // namespace

cudaError_t grouped_squares_dx(Scalar type, void* dx, const void* dy, const void* w, const ConvolutionSizes& sizes,
                               cudaStream_t stream) {
  const GroupedSquares p(sizes);
  const int64_t channels = int64_t{p.groups} * p.units * unit_channels;
  constexpr int element_bytes = 2;
  CUtensorMap from, to;
  if (const cudaError_t error = map_line_boxes(from, dy, {sizes.batch, p.in[0], p.in[1], channels},
                                               p.pixel_bytes / element_bytes, p.line_pixels))
    return error;
  if (const cudaError_t error = map_squares(to, dx, p, sizes.batch, channels)) return error;
  const auto bytes = static_cast<size_t>(p.shared_bytes());
  return with_16_bits(type, [&]<typename T>(T*) {
    return with_kernel<T>(p, [&](auto kernel) {
      if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
      kernel<<<static_cast<unsigned>(p.blocks()), static_cast<unsigned>(p.threads()), bytes, stream>>>(
          to, from, static_cast<const T*>(w), p);
      return cudaGetLastError();
    });
  });
}

}  // namespace plimsoll::cuda
