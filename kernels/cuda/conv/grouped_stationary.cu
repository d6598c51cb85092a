#include "kernels/cuda/conv/grouped_stationary.cuh"

#include "kernels/cuda/common/short_boxes.cuh"
#include "kernels/cuda/common/warpgroup_columns.cuh"
#include "kernels/cuda/conv/grouped.h"
#include "kernels/cuda/conv/unit_tiles.cuh"
#include "kernels/cuda/matmul/tile_ring.cuh"

// 3 x 3 convolutions of groups, and their input gradients without strides, by products of warpgroups, on Hopper. Reads
// lines of the one image once, but for two more at a tile's ends, and writes the other one once. One thread asks for
// tiles of pixels, two warpgroups multiply the weights in their registers by chunks of them and leave rounded sums in
// shared memory, and one more thread has these stored. The warpgroups take turns, so that one multiplies while the
// other rounds its sums.

namespace plimsoll::cuda {
namespace {

using Sizes = GroupedStationary;

__device__ inline void load_tiles(uint8_t* ring, StationaryBarriers& barriers, const CUtensorMap& from, const Sizes& p,
                                  const StationaryBlock& mine) {
  const int bytes = p.planes() * p.plane_pixels() * p.channels_read() * 2;
  RingPlace place;
  for (int tile = mine.first_tile; tile < p.tiles; tile += mine.step, place.advance(p.stages)) {
    // Weights lie behind the first stage at first.
    if (tile == mine.first_tile + mine.step) wait_at(&barriers.weights_are_read, 0);
    wait_at(&barriers.empty[place.stage], place.parity ^ 1);
    const StationaryTile at(p, tile);
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
  for (int tile = mine.first_tile; tile < p.tiles; tile += mine.step) {
    const StationaryTile at(p, tile);
    for (int image = 0; image < at.images; image += p.chunk_images)
      for (int line = 0; line < at.lines; line += p.chunk_rows(), ++chunk) {
        const int place = chunk % Sizes::staged_chunks;
        wait_at(&barriers.there[place], static_cast<uint32_t>(chunk / Sizes::staged_chunks % 2));
        store_box(staged + place * p.chunk_bytes(), to, mine.channel, at.pixel, at.line + line, at.image + image);
        commit_boxes();
        wait_for_older_box_reads();
        if (chunk > 0) arrive_at(&barriers.stored[(chunk - 1) % Sizes::staged_chunks]);
      }
  }
  wait_for_box_reads();
}

template <typename T, int stride, int shifts, int steps, int columns>
__device__ void make_chunks(const StationaryWeights<shifts, steps>& weights,
                            const ChunkResults<shifts, columns>& results, const float (&bias)[2], const uint8_t* ring,
                            StationaryBarriers& barriers, const Sizes& p, const StationaryBlock& mine, int part,
                            int group) {
  constexpr int pixel_units = Sizes::pixel_bytes / 16, term_units = 2, planes_down = stride > 1 ? stride : shifts;
  const bool announces = threadIdx.x % warpgroup_threads == 0;
  const uint32_t first_unit = shared_address(ring) / 16 + static_cast<uint32_t>(part * p.part_units),
                 plane_units = static_cast<uint32_t>(p.plane_bytes() / 16),
                 line_units = static_cast<uint32_t>(p.line_pixels * pixel_units);
  const uint32_t image_units = static_cast<uint32_t>(p.chunk_images * p.image_pixels() * pixel_units),
                 chunk_units = static_cast<uint32_t>(p.chunk_lines) * line_units;
  RingPlace place;
  int chunk = 0;
  if (group == 1) give_turn_to_other(group);
  for (int tile = mine.first_tile; tile < p.tiles; tile += mine.step, place.advance(p.stages)) {
    const StationaryTile at(p, tile);
    wait_at(&barriers.full[place.stage], place.parity);
    uint32_t of_images = first_unit + static_cast<uint32_t>(place.stage * p.stage_bytes() / 16);
    for (int image = 0; image < at.images; image += p.chunk_images, of_images += image_units) {
      uint32_t first = of_images;
      for (int line = 0; line < at.lines; line += p.chunk_rows(), ++chunk, first += chunk_units) {
        // Both have the same part, and every second chunk.
        if (mine.parts == 1 && chunk % Sizes::warpgroups != group) continue;
        float sums[columns / 8][4];
#pragma unroll
        for (float(&sum)[4] : sums) sum[0] = sum[1] = bias[0], sum[2] = sum[3] = bias[1];
        wait_for_turn(group);
        begin_products();
#pragma unroll
        for (int down = 0; down < shifts + Sizes::kernel - 1; ++down)
#pragma unroll
          for (int across = 0; across < Sizes::kernel; ++across)
#pragma unroll
            for (int s = 0; s < steps; ++s) {
              const int plane = down % planes_down * stride + across % stride;
              const uint32_t at_tap = first + plane * plane_units + down / planes_down * line_units +
                                      static_cast<uint32_t>(across / stride * pixel_units + s * term_units);
              start_columns_product<T, columns, false>(sums, weights.at[down][across][s], shared_rows(at_tap));
            }
        commit_products();
        give_turn_to_other(group);
        wait_for_products<0>();
        settle(sums);
        const int staged = chunk % Sizes::staged_chunks;
        wait_at(&barriers.stored[staged], static_cast<uint32_t>(chunk / Sizes::staged_chunks + 1) % 2);
        results.template stage<T>(sums, staged * p.chunk_bytes());
        show_to_copies();
        arrive_as_warp_at(&barriers.there[staged]);
      }
    }
    if (announces) arrive_at(&barriers.empty[place.stage]);
  }
}

template <typename T, int stride, int shifts, int steps, int columns>
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
    const ChunkResults<shifts, columns> results(staged, p, part, warp);
    float of_rows[2] = {};
    if (bias)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = (16 * warp + 8 * half + thread % warp_threads / 4) % (warpgroup_rows / shifts),
                  channel = part * p.part_units * unit_channels + row;
        if (row < p.part_units * unit_channels && channel < mine.channels)
          of_rows[half] = static_cast<float>(bias[mine.channel + channel]);
      }
    wait_for_copies<0>();
    wait_for_both();
    StationaryWeights<shifts, steps> weights;
    load_weights(weights, staged_weights, &zeros, p, mine, part, warp);
    arrive_as_warp_at(&barriers.weights_are_read);
    wait_for_both();
    for (int plane = 0; plane < p.stages * p.planes(); ++plane) {
      uint8_t* behind = ring + plane * p.plane_bytes() + p.plane_pixels() * Sizes::pixel_bytes;
      for (int i = thread; i < p.zero_pixels() * Sizes::block_units; i += Sizes::computing_threads)
        reinterpret_cast<uint4*>(behind)[i] = uint4{};
    }
    show_to_matrix_units();
    wait_for_both();
    make_chunks<T, stride>(weights, results, of_rows, ring, barriers, p, mine, part, group);
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
  const ImageBoxes out_boxes{{c.batch, p.out[0], p.out[1], channels},
                             {p.chunk_images, p.chunk_rows(), p.tile_pixels},
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
    const auto with_columns = [&]<int columns>(std::integral_constant<int, columns>) {
      constexpr int few_steps = 3, most_steps = 4;
      const bool few = p.steps() == few_steps;
      if (p.stride == 2)
        return few ? run(grouped_stationary_kernel<T, 2, 1, few_steps, columns>)
                   : run(grouped_stationary_kernel<T, 2, 1, most_steps, columns>);
      if (p.shifts == 2) return run(grouped_stationary_kernel<T, 1, 2, 2, columns>);
      return few ? run(grouped_stationary_kernel<T, 1, 1, few_steps, columns>)
                 : run(grouped_stationary_kernel<T, 1, 1, most_steps, columns>);
    };
    return p.columns == Sizes::narrow ? with_columns(std::integral_constant<int, Sizes::narrow>())
                                      : with_columns(std::integral_constant<int, Sizes::wide>());
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
