#pragma once

// Fused ops read parts of other values where these lie. So what a split or a slice takes apart is not copied where
// fused ops alone read it, and what forward joins to a concatenation that backward reads anyway is not saved a second
// time where elementwise ops of backward read it: they read their part of the concatenation.
//
// It is right because a part has the same elements. A whole lives until its last part is read. Parts that are runs of
// consecutive elements of their whole are left to the layout, which places them there.

#include "passes/target/fusion_groups.h"

#include <optional>

namespace plimsoll {

// What a value is of another one, along one axis.
struct PartOfValue {
  ValueId whole;
  int64_t axis, start, size;
};

// What a split or a slice takes out of its operand if a fused op can read it there; none for other values.
std::optional<PartOfValue> readable_part(const Graph& graph, ValueId value);

// A part of a saved concatenation that backward reads in the place of a value.
struct SavedPart {
  ValueId part, value;
};

// Gives elementwise nodes of backward slices of saved concatenations in the place of what forward joined.
std::vector<SavedPart> read_saved_wholes(Graph& graph);

// By value: is it a part all of whose whole's readers by this split or slice are nodes of groups?
std::vector<bool> folded_parts(const Graph& graph, const FusionChoice& choice);

// Gives readers the values back whose parts are not folded. Were there any?
bool give_back_unfolded(Graph& graph, std::vector<SavedPart>& parts, const std::vector<bool>& folded);

}  // namespace plimsoll
