#pragma once

// Masks that take off a score what its head's slope times the distance of row and column is (ALiBi, Press et al. 2022).

#include "passes/rewrite/match.h"

#include <vector>

namespace plimsoll {

struct Slopes {
  std::vector<double> of_heads;
  bool closes_columns_ahead = false;  // of each row: the mask is causal besides
  bool is_linear = false;    // columns ahead of the row gain, so that it says the same only where those are closed
  bool shifts_rows = false;  // it adds one number to all of a row, which softmax does not see unless it has a sink
};

// What a constant mask [1 or samples, heads, 1 or rows, columns] says; none where it says something else.
std::optional<Slopes> slopes_of(const Graph& graph, ValueId mask, int64_t heads, int64_t rows, int64_t columns);

}  // namespace plimsoll
