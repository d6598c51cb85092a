#pragma once

// Masks of attention, read for what they say: which are closed forms, and along which dimensions they differ.

#include "passes/clean/attention_segments.h"

#include <vector>

namespace plimsoll {

// Added to a score, numbers from here down leave nothing of a probability.
inline constexpr double closed_from = -1e4;

// where(m, 0, -inf) is the boolean mask m.
ValueId boolean_behind(const Graph& graph, ValueId mask);

// Which columns a mask closes, where a formula says it: those ahead of the row, and those `window` or more away from
// it.
struct ClosedForm {
  bool causal = false;
  int64_t window = 0;  // 0: none

  // What is open in both.
  void narrow(const ClosedForm& other);
  void set(Attrs& attention) const;
  static ClosedForm of(const Attrs& attention);
};

// The closed form of a mask [..., rows, columns] that is constant, or that compares positions of rows and columns.
// Leading dims must be 1; expands over them are looked through. `is_inverted`: of a boolean mask that closes where it
// is true.
std::optional<ClosedForm> closed_form_of(const Graph& graph, ValueId mask, int64_t rows, int64_t columns,
                                         bool is_inverted = false);

// A mask without its closed forms.
struct OpenMask {
  ValueId rest = ValueId::None;  // None: nothing is left
  ClosedForm closed = {};
  std::vector<double> slopes = {};  // for each head, what a score loses per step between row and column; empty: nothing
  bool has_segments = false;        // only pairs of one segment of the mask are open
};

// The mask with its dimension of heads in all that it is made of: exporters may insert it into [samples, rows, columns]
// at the end. Nodes that this takes stand before the attention that reads the mask.
ValueId mask_with_heads(Graph& graph, NodeId attention, ValueId mask);

// The segments that a conjunction or a sum of masks opens, if there are any.
std::optional<Segments> segments_within(const Graph& graph, ValueId mask, int64_t rows, int64_t columns);

// Takes what has a closed form off conjunctions and sums of masks, and lets what is left be as small as it broadcasts
// from. Nodes that this takes stand before the attention that reads the mask. A row that finite numbers close as a
// whole may weigh the columns that a closed form closes otherwise.
OpenMask take_closed_forms(Graph& graph, NodeId attention, ValueId mask, int64_t rows, int64_t columns,
                           const std::optional<Segments>& segments);

}  // namespace plimsoll
