#include "kernels/cuda/conv/grouped_bands.cuh"

#include "kernels/cuda/conv/grouped.h"
#include "kernels/cuda/conv/grouped_band_weights.cuh"
#include "kernels/cuda/conv/two_matrices.cuh"
#include "kernels/cuda/conv/unit_tiles.cuh"

// 3 x 3 convolutions of groups of 24 channels without strides, and their input gradients, on Hopper. Reads lines once,
// but for those above and below a block's bands, and writes the result once. Warps that keep the weights of a group in
// registers multiply strips of 8 pixels of four lines; the copy engine brings lines and takes whole bands of results.

namespace plimsoll::cuda {
namespace {

using Sizes = GroupedBands;
constexpr int tiles = 2, quads = 4;  // of a strip: pairs of lines, and lines of the first of these that taps read
constexpr int group_warps = Sizes::warps / Sizes::block_groups;

// One thread has bands of results stored.
template <typename T>
__device__ void store_bands(T* out, const CUtensorMap& boxes, const uint8_t* shared, BandBarriers& barriers,
                            const Sizes& p, const BandBlock& mine) {
  for (int band = 0; band < mine.count; ++band) {
    const int place = band % Sizes::result_bands;
    const BandLine at(p, mine, band * Sizes::band_lines + 1);
    const uint8_t* from = shared + p.results_at() + place * p.result_bytes();
    wait_at(&barriers.there[place], static_cast<uint32_t>(band / Sizes::result_bands % 2));
    if (p.copies_lines()) {
      const int line_bytes = p.pixels * Sizes::pixel_bytes;
      store_bytes(reinterpret_cast<uint8_t*>(out) + (int64_t{at.image} * p.lines + at.line) * line_bytes, from,
                  min(Sizes::band_lines, p.lines - at.line) * line_bytes);
    } else {
      store_box(from, boxes, mine.first_group * Sizes::group_channels, 0, at.line, at.image);
    }
    commit_boxes();
    wait_for_box_reads();
    arrive_at(&barriers.stored[place]);
  }
}

// This thread's rows of a strip's left operands: of the line that a matrix belongs to, and of the next three. Of an
// operand's four matrices the second and the fourth have the line two further, the third and the fourth the second
// unit.
class StripRows {
 public:
  // From a strip of a band on. of_thread: the address of this thread's pixel and group in the ring's first line.
  __device__ StripRows(uint32_t of_thread, uint32_t zeros, const BandWindow& window, const Sizes& p, int first_line,
                       int strip) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads, further = lane / 8 % 2 * tiles;
    const uint32_t second = lane / 16;  // unit
#pragma unroll
    for (int j = 0; j < quads; ++j) {
      const int line = first_line - 1 + j + further;
      const bool is_there = line >= 0 && line < p.lines;
      const int in_ring = window.slot(j + further) * p.line_bytes + strip * strip_bytes;
      of_units_[j] = (is_there ? of_thread + static_cast<uint32_t>(in_ring) : zeros) + second * 16;
    }
    to_last_ = last_unit + second * (Sizes::pixel_bytes - 16);
  }
  // To the warp's next strip. Zeros lie behind the ring.
  __device__ void advance(uint32_t zeros) {
#pragma unroll
    for (uint32_t& at : of_units_)
      if (at < zeros) at += group_warps * strip_bytes;
  }
  // Terms number i: those of BandWeights::pair[i], or the ones that are alone.
  __device__ void load(LeftFragment (&to)[quads], int i) const {
    constexpr int last_column = (Sizes::kernel - 1) * Sizes::pixel_bytes;
#pragma unroll
    for (int j = 0; j < quads; ++j) {
      if (i + 1 < BandWeights::pairs)
        load_matrices_at(to[j].at, of_units_[j] + i * Sizes::pixel_bytes);
      else if (i < BandWeights::pairs)
        load_matrices_at(to[j].at, of_units_[j] + to_last_);
      else
        load_two_matrices_at(to[j].at, of_units_[j] + last_column + last_unit);
    }
  }

 private:
  static constexpr int strip_bytes = Sizes::strip_pixels * Sizes::pixel_bytes;
  static constexpr uint32_t last_unit = (Sizes::group_units - 1) * 16;
  uint32_t of_units_[quads], to_last_;  // of the first two units; from there to the last one under two columns
};

using StripSums = float[tiles][BandWeights::units][4];

// bias: of two neighbouring channels of each unit.
template <typename T>
__device__ __forceinline__ void begin_sums(StripSums& sums, const uint32_t (&bias)[BandWeights::units]) {
#pragma unroll
  for (int n = 0; n < BandWeights::units; ++n) {
    T pair[2];
    memcpy(pair, &bias[n], sizeof pair);
#pragma unroll
    for (int t = 0; t < tiles; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[t][n][i] = widen(pair[i % 2]);
  }
}

template <typename T>
__device__ __forceinline__ void multiply_strip(StripSums& sums, const StripRows& rows, const BandWeights& weights) {
  LeftFragment left[2][quads];
  rows.load(left[0], 0);
#pragma unroll
  for (int i = 0; i <= BandWeights::pairs; ++i) {
    if (i < BandWeights::pairs) rows.load(left[(i + 1) % 2], i + 1);
#pragma unroll
    for (int k = 0; k < Sizes::kernel; ++k)
#pragma unroll
      for (int t = 0; t < tiles; ++t)
#pragma unroll
        for (int n = 0; n < BandWeights::units; ++n) {
          if (i < BandWeights::pairs) {
            const uint32_t(&right)[2] = weights.pair[i % BandWeights::pairs][k][n];
            multiply_add<T>(sums[t][n], left[i % 2][t + k], RightFragments{{right[0], right[1]}}, 0);
          } else {
            multiply_add_half<T>(sums[t][n], left[i % 2][t + k], RightFragments{{weights.alone[k][n]}}, 0);
          }
        }
  }
}

// Leaves the rounded results of a strip in their band. results: the address of this group's channels of the band's
// first pixel; pixels beyond the line go to spare bytes.
template <typename T>
__device__ __forceinline__ void leave_strip(const StripSums& sums, uint32_t results, uint32_t spare, const Sizes& p,
                                            int strip) {
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, pixel = strip * Sizes::strip_pixels + lane % 8;
  const bool is_there = pixel < p.pixels;
  const uint32_t at = is_there ? results + static_cast<uint32_t>(pixel * Sizes::pixel_bytes) : spare + lane * 16,
                 down = is_there ? static_cast<uint32_t>(p.pixels * Sizes::pixel_bytes) : 0, across = is_there ? 16 : 0,
                 bits[] = {lane / 8 % 2u, lane / 16u};  // of the number of the matrix that this thread's address is for
#pragma unroll
  for (int t = 0; t < tiles; ++t) {
    uint32_t first[BandWeights::units], further[BandWeights::units];  // of the two lines of a tile
#pragma unroll
    for (int n = 0; n < BandWeights::units; ++n)
      first[n] = packed_pair<T>(sums[t][n][0], sums[t][n][1]),
      further[n] = packed_pair<T>(sums[t][n][2], sums[t][n][3]);
    store_matrices_at(at + (t + tiles * bits[1]) * down + bits[0] * across,
                      {first[0], first[1], further[0], further[1]});
    store_two_matrices_at(at + (t + tiles * bits[0]) * down + 2 * across, first[2], further[2]);
  }
}

// The work of a warp: every fourth strip of a group, counted through all bands of the block.
template <typename T>
__device__ void multiply_bands(const BandWeights& weights, const uint32_t (&bias)[BandWeights::units], uint32_t shared,
                               BandBarriers& barriers, const Sizes& p, const BandBlock& mine, int group, int first) {
  const uint32_t zeros = shared + p.zeros_at(), of_group = group * Sizes::group_channels * 2,
                 of_thread = shared + threadIdx.x % 8 * Sizes::pixel_bytes + of_group;
  BandReader reader(barriers, p);
  BandWindow window(p);
  int strip = first;
  for (int band = 0; band < mine.count; ++band, strip -= p.strips, window.advance()) {
    const int first_line = BandLine(p, mine, band * Sizes::band_lines + 1).line, place = band % Sizes::result_bands;
    const auto parity = static_cast<uint32_t>(band / Sizes::result_bands + 1) % 2;
    reader.wait_for(last_line_of(band));
    StripRows rows(of_thread, zeros, window, p, first_line, strip);
    for (; strip < p.strips; strip += group_warps, rows.advance(zeros)) {
      StripSums sums;
      begin_sums<T>(sums, bias);
      multiply_strip<T>(sums, rows, weights);
      wait_at(&barriers.stored[place], parity);
      leave_strip<T>(sums, shared + p.results_at() + place * p.result_bytes() + of_group, shared + p.spare_at(), p,
                     strip);
    }
    reader.give_back_before(first_line_behind(band));
    wait_at(&barriers.stored[place], parity);
    show_to_copies();
    arrive_as_warp_at(&barriers.there[place]);
  }
}

template <typename T, bool gradient>
__global__ void __launch_bounds__(Sizes::threads, 1)
    grouped_bands_kernel(T* __restrict__ out, const __grid_constant__ CUtensorMap out_boxes, const T* __restrict__ in,
                         const __grid_constant__ CUtensorMap in_boxes, const T* __restrict__ w,
                         const T* __restrict__ bias, const __grid_constant__ Sizes p) {
  if constexpr (has_warpgroups) {
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ BandBarriers barriers;
    const int thread = static_cast<int>(threadIdx.x), warp = __shfl_sync(whole_warp, thread / warp_threads, 0);
    const BandBlock mine(p, static_cast<int>(blockIdx.x));
    if (thread == 0) barriers.set_up(p.stages);
    write_band_zeros(memory, p);
    __syncthreads();
    const int groups = min(Sizes::block_groups, p.groups - mine.first_group);
    if (warp >= Sizes::warps) {
      give_registers<Sizes::copying_registers>();
      if (thread == Sizes::computing_threads) {
        const int bytes = groups * Sizes::group_weight_bytes;
        arrive_with_copies(&barriers.weights_are_there, bytes);
        copy_bytes(memory + p.weights_at(),
                   reinterpret_cast<const uint8_t*>(w) + mine.first_group * int64_t{Sizes::group_weight_bytes}, bytes,
                   &barriers.weights_are_there);
        const BandImage from{in, in_boxes};
        BandLoader loader(memory, barriers, from, from, p, mine);
        for (int stage = 0; stage < mine.stages(); ++stage) loader.load_stage(stage);
      }
      if (thread == Sizes::computing_threads + warp_threads) store_bands(out, out_boxes, memory, barriers, p, mine);
      return;
    }
    take_registers<Sizes::computing_registers>();
    const int group = warp / group_warps, channel = (mine.first_group + group) * Sizes::group_channels;
    uint32_t of_rows[BandWeights::units] = {};
    if (bias && group < groups)
#pragma unroll
      for (int n = 0; n < BandWeights::units; ++n)
        of_rows[n] = *reinterpret_cast<const uint32_t*>(bias + channel + n * unit_channels + thread % 4 * 2);
    BandWeights weights;
    wait_at(&barriers.weights_are_there, 0);
    const uint32_t shared = shared_address(memory);
    BandWeightRows<gradient>(shared + p.weights_at() + group * Sizes::group_weight_bytes).load(weights);
    multiply_bands<T>(weights, of_rows, shared, barriers, p, mine, group, warp % group_warps);
  } else {
    __trap();
  }
}

template <bool gradient>
cudaError_t launch_bands(Scalar type, void* out, const void* in, const void* w, const void* bias,
                         const ConvolutionSizes& c, cudaStream_t stream) {
  const Sizes p(c, false);
  const int64_t sizes[] = {c.batch, p.lines, p.pixels, int64_t{p.groups} * Sizes::group_channels};
  CUtensorMap in_boxes, out_boxes;
  if (const cudaError_t error = map_line_boxes(in_boxes, in, sizes, Sizes::block_channels, p.copied_pixels()))
    return error;
  if (const cudaError_t error =
          map_line_boxes(out_boxes, out, sizes, Sizes::block_channels, p.pixels, Sizes::band_lines))
    return error;
  const auto bytes = static_cast<size_t>(p.shared_bytes());
  return with_16_bits(type, [&]<typename T>(T*) {
    const auto kernel = grouped_bands_kernel<T, gradient>;
    if (const cudaError_t error = allow_shared(kernel, bytes)) return error;
    kernel<<<static_cast<unsigned>(p.blocks()), Sizes::threads, bytes, stream>>>(
        static_cast<T*>(out), out_boxes, static_cast<const T*>(in), in_boxes, static_cast<const T*>(w),
        static_cast<const T*>(bias), p);
    return cudaGetLastError();
  });
}

}  // namespace

cudaError_t grouped_bands(Scalar type, void* y, const void* x, const void* w, const void* bias,
                          const ConvolutionSizes& sizes, cudaStream_t stream) {
  return launch_bands<false>(type, y, x, w, bias, sizes, stream);
}

cudaError_t grouped_bands_dx(Scalar type, void* dx, const void* dy, const void* w, const ConvolutionSizes& sizes,
                             cudaStream_t stream) {
  return launch_bands<true>(type, dx, dy, w, nullptr, sizes, stream);
}

}  // namespace plimsoll::cuda
