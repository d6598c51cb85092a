#pragma once

// Which rows of consecutive elements are too short for a warp each: some neighbouring lanes take one. No CUDA here:
// prices depend on it.

#include "kernels/cuda/common/partials.h"

namespace plimsoll::cuda {

// A row as accesses of as many elements as divide it, of which each of `lanes` lanes holds up to `held`.
struct RowsByLanes {
  int64_t count, length;         // rows, elements of a row
  int access = 1, accesses = 0;  // elements of an access, accesses of a row
  int held = 1;
  int lanes = 0;  // a power of 2; 0: rows are too long, or empty

  // Accesses of 8 bytes or more keep enough on its way; of others a lane has several.
  static constexpr bool is_wide_access(int64_t bytes) { return bytes >= 8; }
  static constexpr int held_of(int64_t access_bytes) { return is_wide_access(access_bytes) ? 1 : 4; }

  RowsByLanes(int64_t count, int64_t length, int64_t element_bytes) : count(count), length(length) {
    constexpr int64_t most_wide = 32, most_narrow = 64;
    while (2 * access * element_bytes <= vector_bytes && length % (2 * access) == 0) access *= 2;
    const int64_t of_row = length / access, access_bytes = access * element_bytes;
    if (of_row == 0 || of_row > (is_wide_access(access_bytes) ? most_wide : most_narrow)) return;
    accesses = static_cast<int>(of_row);
    held = held_of(access_bytes);
    lanes = 1;
    while (lanes * held < accesses) lanes *= 2;
  }
};

}  // namespace plimsoll::cuda
