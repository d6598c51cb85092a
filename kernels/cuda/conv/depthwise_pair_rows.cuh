#pragma once

// Which rows of results a row of pixels belongs to where depthwise convolutions multiply pairs of channels, and the
// weights as a thread holds them.

#include "kernels/cuda/conv/depthwise_pairs.cuh"

namespace plimsoll::cuda {

// Bytes of a word and zeros, as PRMT takes them from the word and a zero: nothing that the compiler could make once and
// keep.
__device__ inline uint32_t selected_bytes(uint32_t from, uint32_t selector) {
  uint32_t word;
  asm volatile("prmt.b32 %0, %1, 0, %2;" : "=r"(word) : "r"(from), "r"(selector));
  return word;
}

// What a row of pixels has to do with rows of results. Sums of those that it may belong to stand in turn in so many
// places, and are in the same places again after a period of rows.
template <int kernel_, PairSteps steps_>
struct PairTaps {
  static constexpr int kernel = kernel_, block = DepthwisePairs::block;
  static constexpr PairSteps steps = steps_;
  static constexpr bool one = steps == PairSteps::One, two = steps == PairSteps::Two, half = steps == PairSteps::Half;
  static constexpr int places = one ? kernel : two ? (kernel + 1) / 2 : kernel + 1;
  static constexpr int period = one ? kernel : two ? 2 * places : places / 2;
  static constexpr int finished = half ? 2 : 1;  // most rows of results that a row of pixels completes

  // Blocks of pixels that a thread reads for a strip, and pixels from one to the next; blocks from the first one of
  // the first 4 results to that of the second 4.
  static constexpr int loads = half ? 2 : two ? 5 : kernel == 7 ? 4 : 3, load_pixels = half ? block / 2 : block;
  static constexpr int apart = two ? 2 : 1, strip_pixels = one ? 8 : two ? 16 : 4;
  // Products of two blocks of pixels, and of one. Where both are many, their words share registers.
  static constexpr bool has_whole = !half, has_tail = two || kernel == 7, packed = one && kernel == 7;

  static constexpr bool meets(int row, int down) { return !two || (row - down) % 2 == 0; }
  static constexpr int place(int row, int down) {
    return ((half ? 2 * row + down : two ? (row - down) / 2 : row - down) + places) % places;
  }
  static constexpr int finished_place(int row, int i) { return place(row, half ? i : kernel - 1); }
};

// An item, and a row of pixels that its results may need.
struct PairRow {
  int item, end;
  int channel, image, column, first_result, results;  // of the item; rows of results
  int first_pixel, added;                             // rows; added: of Half, the item's result of row 0 and tap 0
  int row, rows;                                      // of pixels

  __device__ PairRow(const DepthwisePairs& p)
      : item(static_cast<int>(p.items * blockIdx.x / gridDim.x)),
        end(static_cast<int>(p.items * (blockIdx.x + 1) / gridDim.x)) {
    find(p);
  }
  __device__ bool is_there() const { return item < end; }
  __device__ void find(const DepthwisePairs& p) {
    Digits digits{static_cast<unsigned>(item)};
    first_result = digits.take(p.row_tiles) * p.rows;
    column = digits.take(p.column_tiles) * p.width;
    image = digits.take(p.image_groups) * p.images;
    channel = static_cast<int>(digits.rest) * DepthwisePairs::block_channels;
    results = min(p.rows, p.out[0] - first_result);
    row = added = 0;
    if (p.steps == PairSteps::One) {
      first_pixel = first_result + p.first[0], rows = results + p.kernel - 1;
    } else if (p.steps == PairSteps::Two) {
      first_pixel = 2 * first_result + p.first[0], rows = 2 * (results - 1) + p.kernel;
    } else {
      first_pixel = (first_result + p.pad - p.kernel + 2) >> 1;
      added = 2 * first_pixel - p.pad - first_result;
      rows = ((results - 1 - added) >> 1) + 1;
    }
  }
  __device__ void next_item(const DepthwisePairs& p) {
    if (++item < end) find(p);
  }
  __device__ void next(const DepthwisePairs& p) {
    if (++row == rows) next_item(p);
  }
  __device__ bool has_pixels(const DepthwisePairs& p) const {
    return static_cast<unsigned>(first_pixel + row) < static_cast<unsigned>(p.in[0]);
  }
  // The i-th row of the item's results that this row of pixels completes; negative where there is none.
  template <typename Taps>
  __device__ int finished(int i) const {
    if (Taps::half) return 2 * row + i + added < results ? 2 * row + i + added : -1;
    const int rest = row - (Taps::kernel - 1);
    return Taps::one ? rest : rest % 2 == 0 ? rest / 2 : -1;
  }
};

// A thread's words of two channels of weights, of which one is 0: column 2 q + e of a right operand has the taps of
// result q, channel e.
template <typename T, typename Taps>
struct PairWeights {
  static constexpr int kernel = Taps::kernel, taps = kernel * kernel, block = DepthwisePairs::block;

  uint32_t whole[kernel][unit_pairs][Taps::packed || Taps::half ? 1 : 2];
  uint32_t tail[Taps::has_tail ? kernel : 1][Taps::packed ? unit_pairs / 2 : unit_pairs];
  uint32_t own, other;  // how a word is made of one half of a packed one

  __device__ PairWeights() {
    const bool second = threadIdx.x / 4 % 2;
    own = second ? 0x3244 : 0x4410, other = second ? 0x1044 : 0x4432;
  }
  // weights: of the block's channels
  __device__ void load(const T* weights, const DepthwisePairs& p) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads, result = lane / 8;
    const bool second = lane / 4 % 2, turned = Taps::one && p.gradient;
    const int channel = static_cast<int>(threadIdx.x) / warp_threads * unit_channels + second;
    const int to_own = second ? 16 : 0, to_other = 16 - to_own;
    // Of a block of pixels: the first weight by which it counts, or any with a mask of none.
    const T* first[3];
    uint32_t mask[3];
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const int pixel = i * block + lane % 4;
      const int across = Taps::one ? pixel - result : Taps::two ? pixel - 2 * result : result + p.near_tap - 2 * pixel;
      const bool counts = across >= 0 && across < kernel;
      const int tap = counts ? across : 0;
      first[i] = weights + channel * taps + (turned ? taps - 1 - tap : tap);
      mask[i] = counts ? 0xffff : 0;
    }
    const int next = turned ? -kernel : kernel;  // row of taps
    const auto weight = [&](int pair, int down, int i) -> uint32_t {
      const T value = first[i][2 * pair * taps + down * next];
      uint16_t bits;
      memcpy(&bits, &value, sizeof bits);
      return bits & mask[i];
    };
#pragma unroll
    for (int down = 0; down < kernel; ++down)
#pragma unroll
      for (int pair = 0; pair < unit_pairs; ++pair) {
        uint32_t(&words)[Taps::packed || Taps::half ? 1 : 2] = whole[down][pair];
        words[0] = weight(pair, down, 0) << to_own;
        if constexpr (Taps::packed)
          words[0] |= weight(pair, down, 1) << to_other;
        else if constexpr (Taps::has_whole)
          words[1] = weight(pair, down, 1) << to_own;
        if constexpr (Taps::packed) {
          const uint32_t word = weight(pair, down, 2) << (pair % 2 ? to_other : to_own);
          tail[down][pair / 2] = pair % 2 ? tail[down][pair / 2] | word : word;
        } else if constexpr (Taps::has_tail) {
          tail[down][pair] = weight(pair, down, 2) << to_own;
        }
      }
  }
  __device__ RightFragments of_whole(int down, int pair) const {
    if constexpr (Taps::packed)
      return {{selected_bytes(whole[down][pair][0], own), selected_bytes(whole[down][pair][0], other), 0, 0}};
    else
      return {{whole[down][pair][0], whole[down][pair][Taps::half ? 0 : 1], 0, 0}};
  }
  __device__ RightFragments of_tail(int down, int pair) const {
    if constexpr (Taps::packed)
      return {{selected_bytes(tail[down][pair / 2], pair % 2 ? other : own), 0, 0, 0}};
    else
      return {{tail[down][pair], 0, 0, 0}};
  }
};

}  // namespace plimsoll::cuda
