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

// What is added to the scores of two patches from here down keeps them apart, as Swin does with windows that hold the
// edges of a shifted image: a patch sees itself too, and its scores would have to differ by more than 80 before such a
// pair weighed anything in f32.
inline constexpr double apart_from = -100;

// The numbers of segments i64 [windows, rows] that a constant mask [windows, 1, rows, rows] opens, 0 or closed in each
// element; none where it says something else. Leading dims of 1 may stand before it.
std::optional<Tensor> segments_of_windows(const Graph& graph, ValueId mask, int64_t windows, int64_t rows);

// Does the mask open the columns up to the row within each segment? It does where it compares positions and where a
// segment begins with each position that does not follow the one before it.
bool orders_segments(const Graph& graph, ValueId mask, const Segments& segments, int64_t rows, int64_t columns);

}  // namespace plimsoll
