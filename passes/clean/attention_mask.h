#pragma once

// Masks of attention, read for what they say: which are closed forms, and along which dimensions they differ.

#include "passes/rewrite/match.h"

namespace plimsoll {

// where(m, 0, -inf) is the boolean mask m.
ValueId boolean_behind(const Graph& graph, ValueId mask);

enum class ConstantMask : uint8_t { Other, AllOpen, Causal };

// Classifies a constant mask [..., rows, columns]. Leading dims must be 1; expands over them are looked through.
ConstantMask classify_mask(const Graph& graph, ValueId mask, int64_t rows, int64_t columns);

// A mask without its closed forms.
struct OpenMask {
  ValueId rest = ValueId::None;  // None: nothing is left
  bool causal = false;           // what was taken off closes columns behind the row
};

// Takes causal and all-open constants off conjunctions and sums of masks, and lets what is left be as small as it
// broadcasts from. Nodes that this takes stand before `reader`. A row that finite numbers close as a whole may weigh
// the columns that a causal mask closes otherwise.
OpenMask take_closed_forms(Graph& graph, NodeId reader, ValueId mask, int64_t rows, int64_t columns);

}  // namespace plimsoll
