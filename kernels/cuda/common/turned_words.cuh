#pragma once

// Squares of 4 x 4 narrow elements, turned in registers.

#include <cstdint>

namespace plimsoll::cuda {

// Four elements of 8 bits, the first in the lowest byte, or of 16 bits.
using FourBytes = uint32_t;
using FourHalves = uint2;

// column[c] = (row[0][c], row[1][c], row[2][c], row[3][c])
__device__ inline void turn_words(const FourBytes (&row)[4], FourBytes (&column)[4]) {
  const uint32_t low01 = __byte_perm(row[0], row[1], 0x5140), low23 = __byte_perm(row[2], row[3], 0x5140);
  const uint32_t high01 = __byte_perm(row[0], row[1], 0x7362), high23 = __byte_perm(row[2], row[3], 0x7362);
  column[0] = __byte_perm(low01, low23, 0x5410);
  column[1] = __byte_perm(low01, low23, 0x7632);
  column[2] = __byte_perm(high01, high23, 0x5410);
  column[3] = __byte_perm(high01, high23, 0x7632);
}

__device__ inline void turn_words(const FourHalves (&row)[4], FourHalves (&column)[4]) {
  constexpr unsigned both_low = 0x5410, both_high = 0x7632;
  column[0] = make_uint2(__byte_perm(row[0].x, row[1].x, both_low), __byte_perm(row[2].x, row[3].x, both_low));
  column[1] = make_uint2(__byte_perm(row[0].x, row[1].x, both_high), __byte_perm(row[2].x, row[3].x, both_high));
  column[2] = make_uint2(__byte_perm(row[0].y, row[1].y, both_low), __byte_perm(row[2].y, row[3].y, both_low));
  column[3] = make_uint2(__byte_perm(row[0].y, row[1].y, both_high), __byte_perm(row[2].y, row[3].y, both_high));
}

}  // namespace plimsoll::cuda
