#pragma once

// Copies of a run's positions into planes of shared memory, by some warps of a block while others multiply.

#include "kernels/cuda/common/box_copy.cuh"
#include "kernels/cuda/common/warpgroup.cuh"
#include "kernels/cuda/conv/image_runs.h"
#include "kernels/cuda/conv/image_tile.cuh"

namespace plimsoll::cuda {

// What is copied of a pixel: of `count` of the groups so many units, of which channels behind the group's last are
// zeros. A group's channels are whole words.
struct CopiedChannels {
  int groups, group_channels, word_bytes, first_group, count, first_unit, units;
};

// Copies `bytes` from global to shared memory and fills the word with zeros.
template <int word_bytes>
__device__ void copy_part_async(void* to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from), "n"(word_bytes),
               "r"(min(max(bytes, 0), word_bytes))
               : "memory");
}

// Copies the first `bytes` of a unit, in words to whose borders `from` is aligned; the rest are zeros.
template <int word_bytes>
__device__ void copy_unit(uint4* to, const void* from, int bytes) {
  if constexpr (word_bytes == sizeof(uint4)) {
    copy_async(to, from, bytes > 0);
  } else if constexpr (word_bytes >= 4) {
#pragma unroll
    for (int at = 0; at < static_cast<int>(sizeof(uint4)); at += word_bytes)
      copy_part_async<word_bytes>(reinterpret_cast<uint8_t*>(to) + at, static_cast<const uint8_t*>(from) + at,
                                  bytes - at);
  } else {
    const auto* halves = static_cast<const uint16_t*>(from);
    const auto half = [&](int i) -> uint32_t { return 2 * i < bytes ? halves[i] : 0; };
    const auto word = [&](int i) { return half(2 * i) | half(2 * i + 1) << 16; };
    *to = {word(0), word(1), word(2), word(3)};
  }
}

// The channels of some groups of a tensor, as a thread of the copying warps sees them: one of their units, of every
// `lines`-th position. Offsets are words of a pixel, and steps from one position to the next wrap around where they
// lead backwards.
class PlaneCopies {
 public:
  // Pixels of a class are `steps` apart. Of the `threads` copying threads this is the `thread`-th.
  __device__ PlaneCopies(const void* tensor, const ImageRuns& runs, const int (&size)[2], const int (&steps)[2],
                         const CopiedChannels& of, int thread, int threads)
      : period_{runs.axes[0].period, runs.axes[1].period},
        lines_(threads / (of.count * of.units)),
        unit_(thread % (of.count * of.units)),
        line_(thread / (of.count * of.units)),
        word_bytes_(of.word_bytes),
        end_(line_ < lines_ ? static_cast<unsigned>(runs.batch * runs.image_positions) : 0) {
    const auto pixel_words =
        static_cast<unsigned>(of.groups) * static_cast<unsigned>(of.group_channels * 2 / word_bytes_);
    of_column_ = static_cast<unsigned>(steps[1]) * pixel_words;
    of_row_ = static_cast<unsigned>(steps[0] * size[1]) * pixel_words;
    of_image_ = static_cast<unsigned>(size[0]) * static_cast<unsigned>(size[1]) * pixel_words;
    of_first_row_ = static_cast<unsigned>(size[1]) * pixel_words;
    of_pixel_ = pixel_words;
    const int group = unit_ / of.units, channel = (of.first_unit + unit_ - group * of.units) * unit_channels;
    bytes_ = min(max(of.group_channels - channel, 0), unit_channels) * 2;
    from_ = static_cast<const uint8_t*>(tensor) + int64_t{of.first_group + group} * of.group_channels * 2 + channel * 2;
    Digits step{static_cast<unsigned>(lines_)};
    step_[1] = step.take(period_[1]);
    step_[0] = step.take(period_[0]);
    of_step_ = step.rest * of_image_ + static_cast<unsigned>(step_[0]) * of_row_ +
               static_cast<unsigned>(step_[1]) * of_column_;
  }

  __device__ int unit() const { return unit_; }

  // Starts the copies of positions [begin, begin + count), of a class whose lines have pixels[1] pixels behind lead[1]
  // zeros, into this thread's plane.
  __device__ void start(uint4* plane, unsigned begin, int count, const int (&in_class)[2], const int (&pixels)[2],
                        const int (&lead)[2]) const {
    switch (word_bytes_) {
      case 16: return start_words<16>(plane, begin, count, in_class, pixels, lead);
      case 8: return start_words<8>(plane, begin, count, in_class, pixels, lead);
      case 4: return start_words<4>(plane, begin, count, in_class, pixels, lead);
      default: start_words<2>(plane, begin, count, in_class, pixels, lead);
    }
  }

 private:
  template <int word_bytes>
  __device__ void start_words(uint4* plane, unsigned begin, int count, const int (&in_class)[2], const int (&pixels)[2],
                              const int (&lead)[2]) const {
    if (line_ >= lines_) return;
    unsigned at = begin + static_cast<unsigned>(line_);
    Digits digits{at};
    int column = digits.take(period_[1]) - lead[1], row = digits.take(period_[0]) - lead[0];
    unsigned offset = digits.rest * of_image_ + static_cast<unsigned>(row) * of_row_ +
                      static_cast<unsigned>(column) * of_column_ + static_cast<unsigned>(in_class[0]) * of_first_row_ +
                      static_cast<unsigned>(in_class[1]) * of_pixel_;
    const int end_column = period_[1] - lead[1], end_row = period_[0] - lead[0];
    uint4* to = plane + line_;
#pragma unroll 2
    for (int position = line_; position < count; position += lines_) {
      const bool inside = at < end_ && static_cast<unsigned>(row) < static_cast<unsigned>(pixels[0]) &&
                          static_cast<unsigned>(column) < static_cast<unsigned>(pixels[1]);
      copy_unit<word_bytes>(to, from_ + int64_t{offset} * word_bytes, inside ? bytes_ : 0);
      to += lines_, at += static_cast<unsigned>(lines_), offset += of_step_;
      column += step_[1], row += step_[0];
      if (column >= end_column) column -= period_[1], ++row, offset += of_row_ - period_[1] * of_column_;
      if (row >= end_row) row -= period_[0], offset += of_image_ - period_[0] * of_row_;
    }
  }

  int period_[2], lines_, unit_, line_, word_bytes_, bytes_, step_[2];
  unsigned of_column_, of_row_, of_image_, of_first_row_, of_pixel_, of_step_, end_;
  const uint8_t* from_;
};

// Barriers of stages: copying threads say that a stage is full, warps that multiply that it is empty.
template <int max_stages>
struct StageBarriers {
  Barrier full[max_stages], empty[max_stages];

  __device__ void set_up(int stages, int copying_threads, int multiplying_warps) {
    for (int i = 0; i < stages; ++i) {
      set_up_barrier(&full[i], copying_threads);
      set_up_barrier(&empty[i], multiplying_warps);
    }
  }
};

// What a copying thread does for all tiles of a block: start(item, stage) starts the copies of one, which are awaited
// when those of the next are under way.
template <typename Barriers, typename Start>
__device__ void copy_tiles(Barriers& barriers, int64_t first_item, int64_t items, int64_t step, int stages,
                           Start start) {
  RingPlace at;
  int started = -1;
  for (int64_t item = first_item; item < items; item += step, at.advance(stages)) {
    wait_at(&barriers.empty[at.stage], at.parity ^ 1);
    start(item, at.stage);
    commit_copies();
    if (started >= 0) {
      wait_for_copies<1>();
      show_to_matrix_units();
      arrive_at(&barriers.full[started]);
    }
    started = at.stage;
  }
  wait_for_copies<0>();
  show_to_matrix_units();
  if (started >= 0) arrive_at(&barriers.full[started]);
}

}  // namespace plimsoll::cuda
