#pragma once

// The rules of the pass `simplify`.

#include "passes/rewrite/match.h"

namespace plimsoll {

// A value that equals the node's only result and has its type; it exists already or is emitted through `builder`. None
// when the rule does not apply.
using SimplifyRule = ValueId (*)(Builder& builder, const Node& node);

struct SimplifyEntry {
  llvm::StringLiteral op;
  SimplifyRule rule;
};

llvm::ArrayRef<SimplifyEntry> movement_rules();    // reshape, transpose, expand, slice, pad, concat, ...
llvm::ArrayRef<SimplifyEntry> lookup_rules();      // gather, gather_elements, gather_nd
llvm::ArrayRef<SimplifyEntry> piece_rules();       // slice of concat, scatters and gathers that are slices
llvm::ArrayRef<SimplifyEntry> arithmetic_rules();  // cast, x*1, x+0, where, dropout, ...

}  // namespace plimsoll
