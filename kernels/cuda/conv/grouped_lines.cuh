#pragma once

// Rings of lines of images in shared memory, and fragments that warps read from them.

#include "kernels/cuda/common/box_copy.cuh"
#include "kernels/cuda/common/warpgroup.cuh"
#include "kernels/cuda/conv/grouped_lines.h"
#include "kernels/cuda/conv/ring_reader.cuh"

namespace plimsoll::cuda {

// ---- Fragments at addresses in shared memory ----

__device__ inline void load_matrices_at(uint32_t (&at)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(at[0]), "=r"(at[1]), "=r"(at[2]), "=r"(at[3])
               : "r"(row)
               : "memory");
}
// The first two of them, with addresses from the first 16 threads.
__device__ inline void load_two_matrices_at(uint32_t (&at)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(at[0]), "=r"(at[1])
               : "r"(row)
               : "memory");
}
__device__ inline void load_two_matrices_at(uint32_t& first, uint32_t& second, uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(first), "=r"(second)
               : "r"(row)
               : "memory");
}
__device__ inline void load_matrices_transposed_at(uint32_t (&at)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(at[0]), "=r"(at[1]), "=r"(at[2]), "=r"(at[3])
               : "r"(row)
               : "memory");
}
// The first two of them, with addresses from the first 16 threads.
__device__ inline void load_two_matrices_transposed_at(uint32_t& first, uint32_t& second, uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(first), "=r"(second)
               : "r"(row)
               : "memory");
}
__device__ inline void store_matrices_transposed_at(uint32_t row, const uint32_t (&at)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(at[0]),
               "r"(at[1]), "r"(at[2]), "r"(at[3])
               : "memory");
}
// Two of them, with addresses from the first 16 threads.
__device__ inline void store_two_matrices_transposed_at(uint32_t row, uint32_t first, uint32_t second) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(first), "r"(second)
               : "memory");
}
// The same of matrices as they are.
__device__ inline void store_matrices_at(uint32_t row, const uint32_t (&at)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(at[0]), "r"(at[1]),
               "r"(at[2]), "r"(at[3])
               : "memory");
}
__device__ inline void store_two_matrices_at(uint32_t row, uint32_t first, uint32_t second) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(first), "r"(second)
               : "memory");
}
// A matrix's transpose, both as a fragment.
__device__ inline uint32_t transposed_matrix(uint32_t of) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(of));
  return result;
}

// ---- Lines ----

struct LineBarriers {
  Barrier full[LineRing::max_stages], empty[LineRing::max_stages];

  __device__ void set_up(int stages, int warps) {
    for (int i = 0; i < stages; ++i) {
      set_up_barrier(&full[i], 1);
      set_up_barrier(&empty[i], warps);
    }
  }
};

// One thread's side of a ring: it asks for lines up to one, as stages become empty.
class LineLoader {
 public:
  // From a channel and a line of all images on.
  __device__ LineLoader(uint8_t* ring, LineBarriers& barriers, const CUtensorMap& map, const LineRing& p, int channel,
                        int first_line)
      : ring_(ring), barriers_(barriers), map_(map), p_(p), channel_(channel) {
    image_ = first_line / p.image_lines;
    row_ = first_line - image_ * p.image_lines;
  }
  __device__ void load_up_to(int line) {
    for (; asked_ <= line; asked_ += p_.stage_lines, place_.advance(p_.stages)) {
      wait_at(&barriers_.empty[place_.stage], place_.parity ^ 1);
      Barrier* full = &barriers_.full[place_.stage];
      arrive_with_copies(full, p_.stage_lines * p_.line_pixels * p_.pixel_bytes);
      for (int i = 0; i < p_.stage_lines; ++i) {
        copy_box(ring_ + (place_.stage * p_.stage_lines + i) * p_.line_bytes, map_, channel_, -p_.pad[1],
                 row_ - p_.pad[0], image_, full);
        if (++row_ == p_.image_lines) row_ = 0, ++image_;
      }
    }
  }

 private:
  uint8_t* ring_;
  LineBarriers& barriers_;
  const CUtensorMap& map_;
  const LineRing& p_;
  int channel_, image_, row_, asked_ = 0;
  RingPlace place_;
};

using LineReader = RingReader<LineBarriers, LineRing>;

// ---- Terms ----

// Units of channels under all taps, two by two: neighbours of a pixel; of an odd count the last units of two taps
// across, of two taps down, and one alone.
template <int units>
struct LineTerms {
  static constexpr int taps = GroupedLines::kernel, neighbours = taps * taps * (units / 2);
  static constexpr int pairs = GroupedLines::pairs(units);
  enum class Pair { Neighbours, Across, Down, Alone };

  static constexpr Pair kind(int pair) {
    return pair < neighbours           ? Pair::Neighbours
           : pair < neighbours + taps  ? Pair::Across
           : pair == neighbours + taps ? Pair::Down
                                       : Pair::Alone;
  }
  struct Term {
    int row, column, unit;
  };
  static constexpr Term term(int pair, int half) {
    constexpr int units_of_tap = units / 2, last = units - 1;
    switch (kind(pair)) {
      case Pair::Neighbours: {
        const int tap = pair / std::max(units_of_tap, 1), first = pair - tap * units_of_tap;
        return {tap / taps, tap % taps, 2 * first + half};
      }
      case Pair::Across: return {pair - neighbours, half, last};
      case Pair::Down: return {half, taps - 1, last};
      default: return {taps - 1, taps - 1, last};
    }
  }
};

// Where a thread finds its rows of the pairs of units of one pixel; some threads have those of a pair's second unit.
template <int units, int pixel_bytes>
class LineRows {
 public:
  LineRows() = default;
  __device__ LineRows(const GroupedLines& p, const LinePlace& place, uint32_t from, bool second) : second_(second) {
#pragma unroll
    for (int k = 0; k < GroupedLines::kernel; ++k)
      at_[k] = from + static_cast<uint32_t>(place.at(p, k, pixel_bytes)) + (second ? 16 : 0);
  }

  // Of a group, so many behind that of `from`.
  __device__ uint32_t address(int pair, int group) const {
    using Terms = LineTerms<units>;
    const auto first = Terms::term(pair, 0);
    const auto offset = static_cast<uint32_t>(first.column * pixel_bytes + (group * units + first.unit) * 16);
    switch (Terms::kind(pair)) {
      case Terms::Pair::Across: return at_[first.row] + (second_ ? pixel_bytes - 16 : 0) + offset;
      case Terms::Pair::Down: return (second_ ? at_[1] - 16 : at_[0]) + offset;
      default: return at_[first.row] + offset;
    }
  }

 private:
  uint32_t at_[GroupedLines::kernel];
  bool second_;
};

// Calls visit with the units of a group as a constant.
template <int max_units, typename Visit>
cudaError_t with_line_units(int units, Visit visit) {
  if (units == max_units) return visit(std::integral_constant<int, max_units>());
  if constexpr (max_units > 1)
    return with_line_units<max_units - 1>(units, visit);
  else
    return cudaErrorInvalidValue;
}

}  // namespace plimsoll::cuda
