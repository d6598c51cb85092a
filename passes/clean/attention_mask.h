#pragma once

// Masks of attention, read for what they say: which are closed forms, and along which dimensions they differ.

#include "passes/rewrite/match.h"

namespace plimsoll {

// where(m, 0, -inf) is the boolean mask m.
ValueId boolean_behind(const Graph& graph, ValueId mask);

// Which columns a mask closes, where a formula says it: those behind the row, and those `window` or more away from it.
struct ClosedForm {
  bool causal = false;
  int64_t window = 0;  // 0: none

  // What is open in both.
  void narrow(const ClosedForm& other);
  void set(Attrs& attention) const;
  static ClosedForm of(const Attrs& attention);
};

// The closed form of a constant mask [..., rows, columns]. Leading dims must be 1; expands over them are looked
// through.
std::optional<ClosedForm> closed_form_of(const Graph& graph, ValueId mask, int64_t rows, int64_t columns);

// A mask without its closed forms.
struct OpenMask {
  ValueId rest = ValueId::None;  // None: nothing is left
  ClosedForm closed = {};
};

// Takes constants with a closed form off conjunctions and sums of masks, and lets what is left be as small as it
// broadcasts from. Nodes that this takes stand before `reader`. A row that finite numbers close as a whole may weigh
// the columns that a closed form closes otherwise.
OpenMask take_closed_forms(Graph& graph, NodeId reader, ValueId mask, int64_t rows, int64_t columns);

}  // namespace plimsoll
