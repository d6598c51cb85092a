#pragma once

// Masks that open a band of diagonals, read from comparisons of the positions of rows and columns. Folded, such a mask
// is a matrix, which is not made where it would be large: that of a window over 8,192 tokens has 67 million elements.

#include "passes/rewrite/match.h"

namespace plimsoll {

// The columns that are open, by column minus row.
struct Band {
  std::optional<int64_t> first, last;  // none: no limit

  // What is open in both.
  void narrow(const Band& other);
};

// The band that a boolean mask [.., rows, columns] opens; none where it says something else.
std::optional<Band> band_of(const Graph& graph, ValueId mask, int64_t rows, int64_t columns);

// What the band leaves closed, if that is a band.
std::optional<Band> rest_of(const Band& band);

}  // namespace plimsoll
