#pragma once

// Where blocks of packed lines have what in shared memory, and the weights there.

#include "kernels/cuda/conv/grouped_lines.cuh"
#include "kernels/cuda/conv/packed_lines.cuh"

namespace plimsoll::cuda {

// Shared memory of a block.
struct PackedPlaces {
  uint32_t weights, zeros, ring, teams;

  __device__ PackedPlaces(const void* memory, const PackedLines& p)
      : weights(shared_address(memory)),
        zeros(weights + static_cast<uint32_t>(p.weight_bytes())),
        ring(zeros + static_cast<uint32_t>(p.zero_bytes())),
        teams(ring + static_cast<uint32_t>(p.ring_bytes())) {}

  // Of the first pixel of a line in the ring.
  __device__ uint32_t line(const PackedLines& p, int place) const {
    return ring + static_cast<uint32_t>(p.gap_bytes + place * p.slot_bytes());
  }
};

template <int bytes>
__device__ void copy_to(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(bytes) : "memory");
}

// Rows of weights in shared memory are the numbers under all taps of a result, each line of taps with zeros behind it;
// for gradients they are the results of one number.
template <int word_bytes>
__device__ void copy_weights(const PackedPlaces& at, const void* w, const PackedLines& p, int thread) {
  constexpr int kernel = PackedLines::kernel;
  const int piece_bytes = (p.gradient ? p.out_channels : kernel * p.in_channels) * 2;
  const int piece_words = piece_bytes / word_bytes;
  const int pieces = p.gradient ? p.in_channels * kernel * kernel : p.out_channels * kernel;
  for (int i = thread; i < pieces * piece_words; i += PackedLines::computing_threads) {
    const int piece = i / piece_words, word = i - piece * piece_words;
    const int of_tap = p.gradient ? piece / kernel : piece, last = piece - of_tap * kernel;
    uint32_t to = at.weights + static_cast<uint32_t>(word * word_bytes);
    if (p.gradient) {
      const int channel = of_tap / kernel, row = of_tap - channel * kernel;
      to += static_cast<uint32_t>(((kernel - 1 - row) * p.steps * 16 + (kernel - 1 - last) * p.in_channels + channel) *
                                  p.weight_pitch * 16);
    } else {
      const int result = piece / kernel, row = piece - result * kernel;
      to += static_cast<uint32_t>(result * p.weight_pitch * 16 + row * p.steps * 32);
    }
    copy_to<word_bytes>(to, static_cast<const uint8_t*>(w) + int64_t{i} * word_bytes);
  }
}

__device__ inline void load_weights(const PackedPlaces& at, const void* w, const PackedLines& p, int thread) {
  for (int i = thread; i < p.weight_bytes() / 16; i += PackedLines::computing_threads)
    store_zero(at.weights + static_cast<uint32_t>(i) * 16);
  asm volatile("bar.sync 15, %0;" ::"n"(PackedLines::computing_threads) : "memory");
  const int piece_bytes = (p.gradient ? p.out_channels : PackedLines::kernel * p.in_channels) * 2;
  if (piece_bytes % 16 == 0)
    copy_weights<16>(at, w, p, thread);
  else if (piece_bytes % 8 == 0)
    copy_weights<8>(at, w, p, thread);
  else
    copy_weights<4>(at, w, p, thread);
}

// What compiling knows of a convolution without strides of as many channels in both images, or nothing where `known`
// is 0.
template <int known>
struct PackedForm {
  static constexpr int row_units = (PackedLines::kernel * known + unit_channels - 1) / unit_channels,
                       known_steps = (row_units + 1) / 2;
  const PackedLines& p;

  __device__ int in_channels() const { return known > 0 ? known : p.in_channels; }
  __device__ int out_channels() const { return known > 0 ? known : p.out_channels; }
  __device__ int stride() const { return known > 0 ? 1 : p.stride; }
  __device__ int steps() const { return known > 0 ? known_steps : p.steps; }
  __device__ bool ends_half() const { return known > 0 ? row_units % 2 != 0 : p.ends_half; }
  __device__ int spread() const { return known > 0 ? PackedLines::spread_of(known / 2) : p.spread; }
  __device__ int near_mask() const { return (1 << spread()) - 1; }
  __device__ uint32_t pixel_step() const { return static_cast<uint32_t>(stride() * in_channels() * 2); }
  // Which of its team's pixels a thread has in row `i` of its products, counted over all tiles.
  __device__ int pixel_in_team(int i) const {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads;
    return ((i >> spread()) * 8 + lane / 4 << spread()) + (i & near_mask());
  }
};

// Where a thread finds the weights of 16 numbers and one or two units of results, as fragments.
template <int known, int units, int all_units, bool gradient>
struct WeightRows {
  uint32_t first;
  int pitch_bytes, steps;

  __device__ WeightRows(const PackedPlaces& at, const PackedForm<known>& form, int part)
      : pitch_bytes(known > 0 ? 16 * (gradient ? odd_units(all_units)
                                               : odd_units(PackedLines::kernel * 2 * PackedForm<known>::known_steps))
                              : 16 * form.p.weight_pitch),
        steps(form.steps()) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads, matrix = lane / 8, row = lane % 8;
    first = at.weights + static_cast<uint32_t>(gradient ? (matrix % 2 * 8 + row) * pitch_bytes + matrix / 2 * 16
                                                        : (matrix / 2 * 8 + row) * pitch_bytes + matrix % 2 * 16);
    first += static_cast<uint32_t>(part * units) * unit_bytes();
  }
  __device__ uint32_t unit_bytes() const { return gradient ? 16 : static_cast<uint32_t>(8 * pitch_bytes); }

  __device__ void load(uint32_t (&to)[units][2], int row, int step) const {
    const uint32_t step_bytes = gradient ? static_cast<uint32_t>(16 * pitch_bytes) : 32;
    const uint32_t at = first + static_cast<uint32_t>(row * steps + step) * step_bytes;
#pragma unroll
    for (int i = 0; i < units; i += 2) {
      uint32_t both[4];
      const uint32_t own = at + static_cast<uint32_t>(i) * unit_bytes();
      if (i + 1 < units) {
        if constexpr (gradient)
          load_matrices_transposed_at(both, own);
        else
          load_matrices_at(both, own);
        to[i + 1][0] = both[2], to[i + 1][1] = both[3];
      } else if constexpr (gradient) {
        load_two_matrices_transposed_at(both, own);
      } else {
        load_two_matrices_at(both, own);
      }
      to[i][0] = both[0], to[i][1] = both[1];
    }
  }
};

}  // namespace plimsoll::cuda
