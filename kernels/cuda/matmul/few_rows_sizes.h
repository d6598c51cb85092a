#pragma once

// No CUDA here: plans are made where there is none.

#include <algorithm>
#include <cstdint>

namespace plimsoll::cuda {

// Which matrix of a product is the large one: b as [columns, inner], b as [inner, columns], or y, of a as [inner, rows]
// and b as [inner, columns].
enum class FewRowsForm : uint8_t { Turned, Plain, Outer };

struct FewRows {
  static constexpr int tile = 16, threads = 256;

  FewRowsForm form;
  int64_t batch;
  int few, down, across;  // few rows; rows and columns of the large matrix

  constexpr int64_t large_elements() const { return batch * down * across; }
  // Warps that share a matrix, which divide its rows or, of a plain product, its columns: as many as fill a card.
  constexpr int parts() const {
    constexpr int64_t wanted_warps = 8192;
    const int tiles = (form == FewRowsForm::Plain ? across : down) / tile;
    return static_cast<int>(std::clamp<int64_t>(wanted_warps / batch, 1, tiles));
  }
  // Elements of all three matrices.
  constexpr int64_t elements() const { return large_elements() + batch * few * (down + across); }
};

// Of larger matrices libraries read as quickly.
constexpr bool fits(const FewRows& f) {
  constexpr int longest = 1024, most_elements = 4096;
  constexpr int64_t most = int64_t{1} << 30;
  return f.few >= 1 && f.few <= FewRows::tile && f.down % FewRows::tile == 0 && f.across % FewRows::tile == 0 &&
         f.down > 0 && f.across > 0 && f.down <= longest && f.across <= longest && f.down * f.across <= most_elements &&
         f.batch > 0 && f.batch <= most;
}

}  // namespace plimsoll::cuda
