#include "kernels/cuda/conv/grouped.h"
#include "kernels/cuda/conv/grouped_runs.h"

#include "kernels/cuda/conv/run_copies.cuh"
#include "kernels/cuda/conv/run_products.cuh"
#include "kernels/cuda/conv/two_matrices.cuh"
#include "kernels/cuda/conv/unit_tiles.cuh"

// Convolutions of groups, and their input gradients, by warpgroups of Hopper. A tile of positions lies in shared memory
// with one plane for each unit of 8 channels: the rows that a tap meets are the plane's, moved by the tap's distance,
// so that no pixel is copied for a tap. Reads a tile and the rim of its taps, the weights once a block, and writes the
// result once.

namespace plimsoll::cuda {
namespace {

using Barriers = StageBarriers<GroupedRuns::max_stages>;

struct GroupsOfBlock {
  int first, count, first_unit, split;  // first_unit: of the results that the block makes of a group

  __device__ explicit GroupsOfBlock(const GroupedRuns& p) {
    Digits digits{blockIdx.x};
    first = digits.take(p.group_blocks) * p.block_groups;
    count = min(p.block_groups, p.groups - first);
    first_unit = digits.take(p.out_parts) * p.out_units;
    split = static_cast<int>(digits.rest);
  }
};

// 8 of a row's `width` weights in memory, from the `first` on; those outside are zeros.
template <typename T>
__device__ uint4 weights_of_unit(const T* row, int first, int width) {
  if (width % unit_channels == 0 && first >= 0 && first < width) return *reinterpret_cast<const uint4*>(row + first);
  const auto weight = [&](int at) -> uint32_t {
    return at >= 0 && at < width ? *reinterpret_cast<const uint16_t*>(row + at) : 0;
  };
  const auto word = [&](int i) { return weight(first + 2 * i) | weight(first + 2 * i + 1) << 16; };
  return {word(0), word(1), word(2), word(3)};
}

// A unit of a term's weights is 8 channels of the operand for each result channel; for gradients it is 8 result
// channels for each channel of the operand, as they lie in memory.
template <typename T, int out_units, bool gradient>
__device__ void copy_weights(uint4* weights, const T* w, const GroupedRuns& p, const GroupsOfBlock& mine) {
  constexpr int columns = out_units * unit_channels;
  const int terms = 2 * p.pairs;
  const int rows = gradient ? p.in_channels : p.out_channels, width = gradient ? p.out_channels : p.in_channels;
  const int joined_rows = rows / p.joined, joined_width = width / p.joined;
  for (int i = static_cast<int>(threadIdx.x); i < mine.count * p.weight_units; i += GroupedRuns::threads) {
    const int n = i % columns, of_column = i / columns, name = p.term_of[of_column % terms];
    const int64_t group = mine.first + of_column / terms;
    uint4 value{0, 0, 0, 0};
    if (name != GroupedRuns::no_term) {
      const int tap = name / GroupedRuns::name_units, unit = name % GroupedRuns::name_units;
      const int row = gradient ? unit * unit_channels + n % unit_channels : mine.first_unit * unit_channels + n;
      const int first = (gradient ? mine.first_unit + n / unit_channels : unit) * unit_channels;
      const T* of_row = w + ((group * rows + row) * p.taps + tap) * joined_width;
      if (row < rows) value = weights_of_unit(of_row, first - row / joined_rows * joined_width, joined_width);
    }
    weights[i] = value;
  }
}

// Where a position's results go: the pixel of the first class, and behind it how many classes of rows and of columns
// there are.
__device__ inline uint2 place_of(const GroupedRuns& p, unsigned position) {
  const RunAxis &down = p.runs.axes[0], &across = p.runs.axes[1];
  Digits digits{position};
  const int column = digits.take(across.period) * across.out_classes, row = digits.take(down.period) * down.out_classes;
  const unsigned image = digits.rest;
  const int rows = image < p.runs.batch ? min(max(down.out - row, 0), down.out_classes) : 0;
  const int columns = min(max(across.out - column, 0), across.out_classes);
  return {(image * static_cast<unsigned>(down.out) + static_cast<unsigned>(row)) * static_cast<unsigned>(across.out) +
              static_cast<unsigned>(column),
          static_cast<unsigned>(rows << 8 | columns)};
}

__device__ void copy_runs(uint4* stages, Barriers& barriers, const void* in, const GroupedRuns& p,
                          const GroupsOfBlock& mine) {
  constexpr int threads = GroupedRuns::copying_warps * warp_threads;
  const int thread = static_cast<int>(threadIdx.x) - (GroupedRuns::threads - threads);
  const RunAxis &down = p.runs.axes[0], &across = p.runs.axes[1];
  const int lead[2] = {down.lead, across.lead};
  const PlaneCopies copies(in, p.runs, {down.in, across.in}, {down.in_classes, across.in_classes},
                           {p.groups, p.in_channels, p.in_word_bytes, mine.first, mine.count, 0, p.in_units}, thread,
                           threads);
  const int group = copies.unit() / p.in_units, unit = copies.unit() - group * p.in_units;
  copy_tiles(barriers, mine.split, p.items, p.splits, p.stages, [&](int64_t item, int stage) {
    const unsigned begin = static_cast<unsigned>(item) * static_cast<unsigned>(p.tile);
    uint4* to = stages + stage * p.stage_units;
    for (int i = 0; i < p.runs.classes; ++i) {
      const RunPlanes& planes = p.runs.planes[i];
      copies.start(to + group * p.group_units + planes.at + unit * planes.plane_units,
                   begin + static_cast<unsigned>(planes.first), planes.positions, planes.in_class, planes.pixels, lead);
    }
    uint2* places = reinterpret_cast<uint2*>(to + p.places_at());
    for (int i = thread; i < p.tile; i += threads) places[i] = place_of(p, begin + static_cast<unsigned>(i));
  });
}

// Writes words of a warp's 16 positions, of which a thread has one of each unit by turns.
template <typename Word, int out_units>
__device__ void write_words(Word* out, const uint4* staged, const uint2* places, int channels, const GroupedRuns& p,
                            const GroupedRuns::OutClass& of) {
  constexpr int unit_words = sizeof(uint4) / sizeof(Word), row_words = out_units * unit_words;
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
  const int words = channels * 2 / static_cast<int>(sizeof(Word));
  const unsigned of_class = static_cast<unsigned>(of.of[0] * p.runs.axes[1].out + of.of[1]);
  const unsigned pixel_words =
      static_cast<unsigned>(p.groups) * static_cast<unsigned>(p.out_channels * 2 / static_cast<int>(sizeof(Word)));
#pragma unroll 4
  for (int first_piece = 0; first_piece < 16 * row_words; first_piece += warp_threads) {
    const int piece = first_piece + lane, in_warp = min(piece / row_words, 15), n = piece - in_warp * row_words;
    const uint2 place = places[in_warp];
    if (n < words && of.of[0] < static_cast<int>(place.y >> 8) && of.of[1] < static_cast<int>(place.y & 0xff))
      __stwb(out + (place.x + of_class) * pixel_words + n,
             reinterpret_cast<const Word*>(staged + in_warp * odd_units(out_units))[n]);
  }
}

// Writes a warp's 16 positions of one group and class, through shared memory so that long pieces go out. `channels` of
// the units are there.
template <typename T, int out_units>
__device__ void write_run(T* out, uint4* staged, const uint2* places, const float (&sums)[out_units][4], const T* bias,
                          int channels, const GroupedRuns& p, const GroupedRuns::OutClass& of) {
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
  uint32_t words[out_units][2];
#pragma unroll
  for (int n = 0; n < out_units; ++n) {
    float added[2] = {};
    if (bias) {
      const int channel = n * unit_channels + lane % 4 * 2;
#pragma unroll
      for (int k = 0; k < 2; ++k)
        if (channel + k < channels) added[k] = widen(bias[channel + k]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
      words[n][half] = packed_pair<T>(sums[n][2 * half] + added[0], sums[n][2 * half + 1] + added[1]);
  }
  __syncwarp();
  uint4* row = staged + lane % 16 * odd_units(out_units);
#pragma unroll
  for (int n = 0; n + 1 < out_units; n += 2)
    store_matrices(row + n + lane / 16, {words[n][0], words[n][1], words[n + 1][0], words[n + 1][1]});
  if constexpr (out_units % 2 != 0)
    store_two_matrices(row + out_units - 1, words[out_units - 1][0], words[out_units - 1][1]);
  __syncwarp();
  switch (p.out_word_bytes) {
    case 16: return write_words<uint4, out_units>(reinterpret_cast<uint4*>(out), staged, places, channels, p, of);
    case 8: return write_words<uint2, out_units>(reinterpret_cast<uint2*>(out), staged, places, channels, p, of);
    case 4: return write_words<unsigned, out_units>(reinterpret_cast<unsigned*>(out), staged, places, channels, p, of);
    default:
      write_words<unsigned short, out_units>(reinterpret_cast<unsigned short*>(out), staged, places, channels, p, of);
  }
}

// Warpgroups take turns of the products of a tile: runs of 64 positions of the groups and classes.
template <typename T, int out_units, bool gradient>
__device__ void multiply_runs(T* out, const T* bias, uint4* stages, const uint4* weights, uint4* staged,
                              Barriers& barriers, const GroupedRuns& p, const GroupsOfBlock& mine) {
  constexpr int columns = out_units * unit_channels;
  const int warp = __shfl_sync(whole_warp, static_cast<int>(threadIdx.x) / warp_threads, 0);
  const uint32_t stages_at = shared_address(stages) >> 4, weights_at = shared_address(weights) >> 4;
  const int products = p.tile / GroupedRuns::run_rows * mine.count * p.classes;
  staged += warp * p.staged_units();
  RingPlace at;
  for (int64_t item = mine.split; item < p.items; item += p.splits, at.advance(p.stages)) {
    wait_at(&barriers.full[at.stage], at.parity);
    const auto* places = reinterpret_cast<const uint2*>(stages + at.stage * p.stage_units + p.places_at());
    for (int product = warp / 4; product < products; product += GroupedRuns::warpgroups) {
      Digits digits{static_cast<unsigned>(product)};
      const int group = digits.take(mine.count), out_class = digits.take(p.classes),
                run = static_cast<int>(digits.rest);
      const GroupedRuns::OutClass& of = p.out_classes[out_class];
      const uint32_t left = stages_at + at.stage * p.stage_units + group * p.group_units + run * GroupedRuns::run_rows;
      uint64_t right = plain_matrix(weights_at + group * p.weight_units + of.first_pair * 2 * columns, columns, 8);
      float sums[out_units][4];
      begin_products();
#pragma unroll 4
      for (int pair = of.first_pair; pair < of.end_pair; ++pair, right += 2 * columns)
        start_run_product<T, out_units, Along::Terms, gradient ? Along::Rows : Along::Terms>(
            sums, uint64_t{left + p.pair_at[pair]} | uint64_t{8} << 32, right, pair > of.first_pair);
      commit_products();
      wait_for_products<0>();
      settle(sums);
      const int in_group = mine.first_unit * unit_channels, first = (mine.first + group) * p.out_channels + in_group;
      write_run<T, out_units>(out + first, staged, places + run * GroupedRuns::run_rows + warp % 4 * 16, sums,
                              bias ? bias + first : nullptr, min(p.out_channels - in_group, columns), p, of);
    }
    arrive_as_warp_at(&barriers.empty[at.stage]);
  }
}

template <typename T, int out_units, bool gradient>
__global__ void __launch_bounds__(GroupedRuns::threads, 1)
    grouped_runs_kernel(T* __restrict__ out, const T* __restrict__ in, const T* __restrict__ w,
                        const T* __restrict__ bias, const __grid_constant__ GroupedRuns p) {
  if constexpr (has_warpgroups) {
    extern __shared__ uint4 shared[];
    __shared__ Barriers barriers;
    constexpr int multiplying = GroupedRuns::warpgroups * 4;
    const GroupsOfBlock mine(p);
    uint4 *weights = shared + p.stages * p.stage_units, *staged = weights + p.block_groups * p.weight_units;
    if (threadIdx.x == 0) barriers.set_up(p.stages, GroupedRuns::copying_warps * warp_threads, multiplying);
    copy_weights<T, out_units, gradient>(weights, w, p, mine);
    show_to_matrix_units();
    __syncthreads();
    if (threadIdx.x >= multiplying * warp_threads)
      copy_runs(shared, barriers, in, p, mine);
    else
      multiply_runs<T, out_units, gradient>(out, bias, shared, weights, staged, barriers, p, mine);
  } else {
    __trap();
  }
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
          static_cast<T*>(out), static_cast<const T*>(in), static_cast<const T*>(w), static_cast<const T*>(bias), p);
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
