#pragma once

// Masks that open the pairs of a row and a column of one segment: documents that are packed into one row of tokens.

#include "passes/rewrite/match.h"

namespace plimsoll {

// The numbers of segments, integers that read as [samples, rows].
struct Segments {
  ValueId numbers = ValueId::None;
  int64_t samples = 1;
};

// The segments of a mask equal(n [.., rows, 1], n [.., 1, columns]); none where it says something else.
std::optional<Segments> segments_of(const Graph& graph, ValueId mask, int64_t rows, int64_t columns);

// Does the mask open the columns up to the row within each segment? It does where it compares positions and where a
// segment begins with each position that does not follow the one before it.
bool orders_segments(const Graph& graph, ValueId mask, const Segments& segments, int64_t rows, int64_t columns);

}  // namespace plimsoll
