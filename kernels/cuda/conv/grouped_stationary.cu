#include "kernels/cuda/conv/grouped_stationary.cuh"

#include "kernels/cuda/common/short_boxes.cuh"
#include "kernels/cuda/common/warpgroup_columns.cuh"
#include "kernels/cuda/conv/grouped.h"
#include "kernels/cuda/conv/unit_tiles.cuh"
#include "kernels/cuda/matmul/tile_ring.cuh"

// 3 x 3 convolutions of groups, and their input gradients, by products of warpgroups, on Hopper. Reads lines of the one
// image once, but for those around a tile, and writes the other one once. One thread asks for tiles of pixels, two
// warpgroups multiply the weights in their registers by chunks of them and leave rounded sums in shared memory, and one
// more thread has these stored. The warpgroups take turns, so that one multiplies while the other rounds its sums.

namespace plimsoll::cuda {
namespace {

using Sizes = GroupedStationary;

__device__ inline void load_tiles(uint8_t* ring, StationaryBarriers& barriers, const CUtensorMap& from, const Sizes& p,
                                  const StationaryBlock& mine) {
  const int bytes = p.planes() * p.plane_pixels() * p.channels_read() * 2;
  RingPlace place;
  for (StationaryTiles tiles(p, mine); tiles.are_left(); tiles.advance(), place.advance(p.stages)) {
    // The stages behind the first one hold the weights until they are in registers.
    if (tiles.is_second()) wait_at(&barriers.weights_are_read, 0);
    wait_at(&barriers.empty[place.stage], place.parity ^ 1);
    const StationaryTile at(p, tiles.tile());
    Barrier* full = &barriers.full[place.stage];
    arrive_with_copies(full, bytes);
    uint8_t* stage = ring + place.stage * p.stage_bytes();
    for (int down = 0; down < p.planes_down; ++down)
      for (int across = 0; across < p.planes_across; ++across)
        copy_box(stage + (down * p.planes_across + across) * p.plane_bytes(), from, mine.channel,
                 at.pixel * p.stride - p.pad[1] + across, at.line * p.stride - p.pad[0] + down, at.image, full);
  }
}

__device__ inline void store_chunks(const uint8_t* staged, StationaryBarriers& barriers, const CUtensorMap& to,
                                    const Sizes& p, const StationaryBlock& mine) {
  int chunk = 0;
  for (StationaryTiles tiles(p, mine); tiles.are_left(); tiles.advance()) {
    const StationaryTile at(p, tiles.tile());
    for (int image = 0; image < at.images; image += p.chunk_images)
      for (int line = 0; line < at.lines; line += p.chunk_rows(), ++chunk) {
        const int place = chunk % Sizes::staged_chunks;
        wait_at(&barriers.there[place], static_cast<uint32_t>(chunk / Sizes::staged_chunks % 2));
        store_box(staged + place * p.chunk_bytes(), to, mine.channel, at.pixel * p.scale, (at.line + line) * p.scale,
                  at.image + image);
        commit_boxes();
        wait_for_older_box_reads();
        if (chunk > 0) arrive_at(&barriers.stored[(chunk - 1) % Sizes::staged_chunks]);
      }
  }
  wait_for_box_reads();
}

// Distances in shared memory, in units of 16 bytes.
struct StationaryUnits {
  static constexpr uint32_t pixel = Sizes::pixel_bytes / 16, terms = 2;
  uint32_t plane, line;

  __device__ explicit StationaryUnits(const Sizes& p)
      : plane(static_cast<uint32_t>(p.plane_bytes() / 16)), line(static_cast<uint32_t>(p.line_pixels) * pixel) {}
};

// The products of one tap. Functions that start products are always inlined, because their sums and weights must stay
// in registers.
template <typename T, int steps, int columns>
__device__ __forceinline__ void start_tap(float (&sums)[columns / 8][4], const LeftFragment (&weights)[steps],
                                          uint32_t at) {
#pragma unroll
  for (int s = 0; s < steps; ++s)
    start_columns_product<T, columns, false>(sums, weights[s], shared_rows(at + s * StationaryUnits::terms));
}

// The products of tap number `index` of result `piece` of a square, if it has so many taps.
template <typename T, typename Form, int piece, int index, int columns>
__device__ __forceinline__ void start_square_tap(float (&sums)[columns / 8][4], const StationaryWeights<Form>& weights,
                                                 uint32_t first, const StationaryUnits& units) {
  constexpr int row = piece / Form::scale, column = piece % Form::scale, taps_across = SquareTap::count(column);
  if constexpr (index < SquareTap::count(row) * taps_across) {
    constexpr SquareTap down(row, index / taps_across), across(column, index % taps_across);
    start_tap<T, Form::steps, columns>(sums, weights.at[down.tap][across.tap],
                                       first + down.ahead * units.line + across.ahead * StationaryUnits::pixel);
  }
}

// The products of all taps, or of the taps of one result of a square.
template <typename T, typename Form, int piece, int columns>
__device__ __forceinline__ void start_products(float (&sums)[columns / 8][4], const StationaryWeights<Form>& weights,
                                               uint32_t first, const StationaryUnits& units) {
  if constexpr (Form::scale == 1) {
#pragma unroll
    for (int down = 0; down < Form::lines; ++down)
#pragma unroll
      for (int across = 0; across < Sizes::kernel; ++across)
        start_tap<T, Form::steps, columns>(
            sums, weights.at[down][across],
            first + (down % Form::planes_down * Form::stride + across % Form::stride) * units.plane +
                down / Form::planes_down * units.line + across / Form::stride * StationaryUnits::pixel);
  } else {
    start_square_tap<T, Form, piece, 0, columns>(sums, weights, first, units);
    start_square_tap<T, Form, piece, 1, columns>(sums, weights, first, units);
    start_square_tap<T, Form, piece, 2, columns>(sums, weights, first, units);
    start_square_tap<T, Form, piece, 3, columns>(sums, weights, first, units);
  }
}

// Computes one result for each column of a chunk.
template <typename T, typename Form, int piece, int columns>
__device__ __forceinline__ void make_piece(const StationaryWeights<Form>& weights,
                                           const ChunkResults<Form, columns>& results, const float (&bias)[2],
                                           StationaryBarriers& barriers, const Sizes& p, const StationaryUnits& units,
                                           uint32_t first, int chunk, int group) {
  const auto first_value = [&](int half) { return Form::scale > 1 ? 0.0f : bias[half]; };  // gradients have none
  float sums[columns / 8][4];
#pragma unroll
  for (float(&sum)[4] : sums) sum[0] = sum[1] = first_value(0), sum[2] = sum[3] = first_value(1);
  if (Form::takes_turns) wait_for_turn(group);
  begin_products();
  start_products<T, Form, piece, columns>(sums, weights, first, units);
  commit_products();
  if (Form::takes_turns) give_turn_to_other(group);
  wait_for_products<0>();
  settle_here(sums);
  const int staged = chunk % Sizes::staged_chunks;
  if (piece == 0) wait_at(&barriers.stored[staged], static_cast<uint32_t>(chunk / Sizes::staged_chunks + 1) % 2);
  const int behind = piece / Form::scale * Form::scale * p.tile_pixels + piece % Form::scale;
  results.template stage<T>(sums, staged * p.chunk_bytes(), behind);
}

template <typename T, typename Form, int columns>
__device__ void make_chunks(const StationaryWeights<Form>& weights, const ChunkResults<Form, columns>& results,
                            const float (&bias)[2], const uint8_t* ring, StationaryBarriers& barriers, const Sizes& p,
                            const StationaryBlock& mine, int part, int group) {
  const bool announces = threadIdx.x % warpgroup_threads == 0;
  const StationaryUnits units(p);
  const uint32_t first_unit = shared_address(ring) / 16 + static_cast<uint32_t>(part * p.part_units),
                 image_units = static_cast<uint32_t>(p.chunk_images * p.plane_lines) * units.line,
                 chunk_units = static_cast<uint32_t>(p.chunk_lines) * units.line;
  RingPlace place;
  int chunk = 0;
  if (Form::takes_turns && group == 1) give_turn_to_other(group);
  for (StationaryTiles tiles(p, mine); tiles.are_left(); tiles.advance(), place.advance(p.stages)) {
    const StationaryTile at(p, tiles.tile());
    wait_at(&barriers.full[place.stage], place.parity);
    uint32_t of_images = first_unit + static_cast<uint32_t>(place.stage * p.stage_bytes() / 16);
    for (int image = 0; image < at.images; image += p.chunk_images, of_images += image_units) {
      uint32_t first = of_images;
      for (int line = 0; line < at.lines; line += p.chunk_rows(), ++chunk, first += chunk_units) {
        // Both warpgroups have the same part and take every second chunk.
        if (mine.parts == 1 && chunk % Sizes::warpgroups != group) continue;
        const auto make = [&](auto piece) {
          make_piece<T, Form, decltype(piece)::value, columns>(weights, results, bias, barriers, p, units, first, chunk,
                                                               group);
        };
        make(std::integral_constant<int, 0>());
        if constexpr (Form::pieces > 1) {
          make(std::integral_constant<int, 1>());
          make(std::integral_constant<int, 2>());
          make(std::integral_constant<int, 3>());
        }
        show_to_copies();
        arrive_as_warp_at(&barriers.there[chunk % Sizes::staged_chunks]);
      }
    }
    if (announces) arrive_at(&barriers.empty[place.stage]);
  }
}

template <typename T, typename Form, int columns>
__global__ void __launch_bounds__(Sizes::threads, 1)
    grouped_stationary_kernel(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to,
                              const T* __restrict__ w, const T* __restrict__ bias, const __grid_constant__ Sizes p) {
  if constexpr (has_warpgroups) {
    extern __shared__ uint8_t memory[];
    __shared__ StationaryBarriers barriers;
    __shared__ uint4 zeros;
    uint8_t* const ring = first_tile_border(memory);
    uint8_t* const staged = ring + p.stages * p.stage_bytes();
    uint8_t* const staged_weights = ring + p.stage_bytes();
    const StationaryBlock mine(p, static_cast<int>(blockIdx.x));
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < Sizes::computing_threads) copy_weights(staged_weights, w, p, mine);
    if (thread == 0) {
      barriers.set_up(p.stages, mine.parts);
      zeros = uint4{};
    }
    __syncthreads();
    if (thread >= Sizes::computing_threads) {
      give_registers<Sizes::copying_registers>();
      if (thread == Sizes::computing_threads) load_tiles(ring, barriers, from, p, mine);
      if (thread == Sizes::computing_threads + warp_threads) store_chunks(staged, barriers, to, p, mine);
      return;
    }
    take_registers<Sizes::computing_registers>();
    const int group = __shfl_sync(whole_warp, thread / warpgroup_threads, 0),
              warp = __shfl_sync(whole_warp, thread % warpgroup_threads / warp_threads, 0),
              part = mine.parts == 1 ? 0 : group;
    const ChunkResults<Form, columns> results(staged, p, part, warp);
    float of_rows[2] = {};
    if (bias)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = (16 * warp + 8 * half + thread % warp_threads / 4) % (warpgroup_rows / Form::shifts),
                  channel = part * p.part_units * unit_channels + row;
        if (row < p.part_units * unit_channels && channel < mine.channels)
          of_rows[half] = static_cast<float>(bias[mine.channel + channel]);
      }
    wait_for_copies<0>();
    wait_for_both();
    StationaryWeights<Form> weights;
    load_weights(weights, staged_weights, &zeros, p, mine, part, warp);
    arrive_as_warp_at(&barriers.weights_are_read);
    wait_for_both();
    constexpr int warps = Sizes::computing_threads / warp_threads;
    for (int plane = thread / warp_threads; plane < p.stages * p.planes(); plane += warps)
      write_zeros_behind(ring + plane * p.plane_bytes(), p.plane_pixels(), p.zero_pixels());
    show_to_matrix_units();
    wait_for_both();
    make_chunks<T>(weights, results, of_rows, ring, barriers, p, mine, part, group);
  } else {
    __trap();
  }
}

cudaError_t launch(Scalar type, void* out, const void* in, const void* w, const void* bias, const ConvolutionSizes& c,
                   bool gradient, cudaStream_t stream) {
  const Sizes p(c, gradient);
  const int64_t channels = p.channels();
  CUtensorMap from, to;
  const ImageBoxes in_boxes{{c.batch, p.in[0], p.in[1], channels},
                            {p.images, p.plane_lines, p.line_pixels},
                            {p.planes_down, p.planes_across},
                            p.channels_read()};
  const ImageBoxes out_boxes{{c.batch, p.results[0], p.results[1], channels},
                             {p.chunk_images, p.chunk_rows() * p.scale, p.tile_pixels * p.scale},
                             {1, 1},
                             p.channels_of_block()};
  if (const cudaError_t error = map_image(from, in, in_boxes)) return error;
  if (const cudaError_t error = map_image(to, out, out_boxes)) return error;
  const auto bytes = static_cast<size_t>(p.shared_bytes());
  return with_16_bits(type, [&]<typename T>(T*) {
    const auto run = [&](auto kernel) {
      if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
      kernel<<<static_cast<unsigned>(p.blocks()), Sizes::threads, bytes, stream>>>(from, to, static_cast<const T*>(w),
                                                                                   static_cast<const T*>(bias), p);
      return cudaGetLastError();
    };
    constexpr int few = 3, most = 4;  // steps
    const bool has_few = p.steps() == few;
    const auto with_form = [&]<typename Form>(Form*) {
      if constexpr (Form::scale > 1) {
        if (p.columns == Sizes::narrowest) return run(grouped_stationary_kernel<T, Form, Sizes::narrowest>);
      } else {
        if (p.columns == Sizes::wide) return run(grouped_stationary_kernel<T, Form, Sizes::wide>);
      }
      if constexpr (Form::shifts > 1)
        if (p.columns == Sizes::widest) return run(grouped_stationary_kernel<T, Form, Sizes::widest>);
      return run(grouped_stationary_kernel<T, Form, Sizes::narrow>);
    };
    const auto with_steps = [&]<int steps>(std::integral_constant<int, steps>) {
      if (p.scale > 1) return with_form(static_cast<StationaryForm<2, 1, 1, steps>*>(nullptr));
      return p.stride > 1 ? with_form(static_cast<StationaryForm<1, 2, 1, steps>*>(nullptr))
                          : with_form(static_cast<StationaryForm<1, 1, 1, steps>*>(nullptr));
    };
    if (p.shifts > 1) return with_form(static_cast<StationaryForm<1, 1, 2, 2>*>(nullptr));
    return has_few ? with_steps(std::integral_constant<int, few>()) : with_steps(std::integral_constant<int, most>());
  });
}

}  // namespace

cudaError_t grouped_stationary(Scalar type, void* y, const void* x, const void* w, const void* bias,
                               const ConvolutionSizes& sizes, cudaStream_t stream) {
  return launch(type, y, x, w, bias, sizes, false, stream);
}

cudaError_t grouped_stationary_dx(Scalar type, void* dx, const void* dy, const void* w, const ConvolutionSizes& sizes,
                                  cudaStream_t stream) {
  return launch(type, dx, dy, w, nullptr, sizes, true, stream);
}

}  // namespace plimsoll::cuda
