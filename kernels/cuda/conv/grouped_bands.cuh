#pragma once

// What convolutions of groups in bands and their weight gradients have in common: how lines come to the ring, and where
// a band's lines lie in it.

#include "kernels/cuda/common/line_boxes.cuh"
#include "kernels/cuda/common/short_boxes.cuh"
#include "kernels/cuda/common/warpgroup.cuh"
#include "kernels/cuda/conv/grouped_bands.h"
#include "kernels/cuda/conv/grouped_lines.cuh"

namespace plimsoll::cuda {

struct BandBarriers {
  Barrier full[GroupedBands::max_stages], empty[GroupedBands::max_stages], weights_are_there,
      there[GroupedBands::result_bands], stored[GroupedBands::result_bands];

  __device__ void set_up(int stages) {
    for (int i = 0; i < stages; ++i) {
      set_up_barrier(&full[i], 1);
      set_up_barrier(&empty[i], GroupedBands::warps);
    }
    set_up_barrier(&weights_are_there, 1);
    for (int i = 0; i < GroupedBands::result_bands; ++i) {
      set_up_barrier(&there[i], GroupedBands::warps);
      set_up_barrier(&stored[i], 1);
    }
    show_barriers_to_copies();
  }
};

using BandReader = RingReader<BandBarriers, GroupedBands>;

// Writes the zeros that no copy brings; all threads of the block call it. Of a weight gradient's pixels those beyond a
// line are multiplied by zeros of dy, so whatever lies there must be finite.
__device__ inline void write_band_zeros(uint8_t* shared, const GroupedBands& p) {
  constexpr int pixel = GroupedBands::pixel_bytes;
  const auto clear = [&](int from, int bytes) {
    for (int i = static_cast<int>(threadIdx.x) * 16; i < bytes; i += GroupedBands::threads * 16)
      *reinterpret_cast<uint4*>(shared + from + i) = uint4{};
  };
  const int read_pixels = p.strips * GroupedBands::strip_pixels, behind = (read_pixels - p.pixels) * pixel;
  clear(p.zeros_at(), GroupedBands::zero_bytes);
  if (p.is_dw() && behind > 0) clear(0, p.dy_ring_at());
  if (p.copies_lines())
    for (int line = 0; line <= p.ring_lines(); ++line) {
      clear(line * p.line_bytes, pixel);
      if (p.is_dw() && line < p.ring_lines()) clear(p.dy_ring_at() + line * p.dy_line_bytes + p.pixels * pixel, behind);
    }
  show_to_copies();
}

// An image, in memory and as boxes of a block's channels.
struct BandImage {
  const void* memory;
  const CUtensorMap& boxes;
};

// One thread asks for the lines of an image, and for a weight gradient for those of dy, too. x: the image under the
// taps.
class BandLoader {
 public:
  __device__ BandLoader(uint8_t* shared, BandBarriers& barriers, const BandImage& x, const BandImage& dy,
                        const GroupedBands& p, const BandBlock& mine)
      : shared_(shared), barriers_(barriers), x_(x), dy_(dy), p_(p), mine_(mine) {}

  __device__ void load_stage(int stage) {
    constexpr int lines = GroupedBands::stage_lines;
    Barrier* full = &barriers_.full[place_.stage];
    wait_at(&barriers_.empty[place_.stage], place_.parity ^ 1);
    const BandLine line[lines] = {BandLine(p_, mine_, stage * lines), BandLine(p_, mine_, stage * lines + 1)};
    int pixels = 0;
    for (const BandLine& at : line) {
      if (at.is_there) pixels += p_.copied_pixels();
      if (p_.is_dw() && at.has_results) pixels += p_.copied_dy_pixels();
    }
    arrive_with_copies(full, pixels * GroupedBands::pixel_bytes);
    for (int i = 0; i < lines; ++i) {
      const int in_ring = place_.stage * lines + i, before = p_.copies_lines() ? GroupedBands::pixel_bytes : 0;
      if (line[i].is_there) copy(shared_ + in_ring * p_.line_bytes + before, x_, line[i], -1, full);
      if (p_.is_dw() && line[i].has_results)
        copy(shared_ + p_.dy_ring_at() + in_ring * p_.dy_line_bytes, dy_, line[i], 0, full);
    }
    place_.advance(p_.stages);
  }

 private:
  uint8_t* shared_;
  BandBarriers& barriers_;
  const BandImage &x_, &dy_;
  const GroupedBands& p_;
  const BandBlock& mine_;
  RingPlace place_;

  // pixel: of a box, its first one.
  __device__ void copy(uint8_t* to, const BandImage& image, const BandLine& at, int pixel, Barrier* full) {
    if (!p_.copies_lines())
      return copy_box(to, image.boxes, mine_.first_group * GroupedBands::group_channels, pixel, at.line, at.image,
                      full);
    const int bytes = p_.pixels * GroupedBands::pixel_bytes;
    copy_bytes(to, static_cast<const uint8_t*>(image.memory) + (int64_t{at.image} * p_.lines + at.line) * bytes, bytes,
               full);
  }
};

// Where the lines that a band reads lie in the ring, from the one above it on.
class BandWindow {
 public:
  __device__ explicit BandWindow(const GroupedBands& p) : p_(p) {}

  // The slot of line `line` of the window, 0 to 5.
  __device__ int slot(int line) const {
    const int slot = first_ + line;
    return slot < p_.ring_lines() ? slot : slot - p_.ring_lines();
  }
  __device__ void advance() { first_ = slot(GroupedBands::band_lines); }

 private:
  const GroupedBands& p_;
  int first_ = 0;
};

// The last line of a block that band number `band` reads, and the first one that the next band does.
__device__ inline int last_line_of(int band) {
  return band * GroupedBands::band_lines + GroupedBands::band_lines + GroupedBands::kernel - 2;
}
__device__ inline int first_line_behind(int band) { return (band + 1) * GroupedBands::band_lines; }

// The address of a strip's pixel where that of the line's one is given, or that of zeros.
__device__ inline uint32_t strip_at(uint32_t line, int strip, uint32_t zeros) {
  constexpr int strip_bytes = GroupedBands::strip_pixels * GroupedBands::pixel_bytes;
  return line == zeros ? zeros : line + static_cast<uint32_t>(strip * strip_bytes);
}

}  // namespace plimsoll::cuda
