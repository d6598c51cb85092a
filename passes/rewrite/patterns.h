#pragma once

// The driver of all rewrites that look at one node and at what surrounds it.

#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {

struct Pattern {
  llvm::StringRef op;                                              // the nodes it looks at; empty: all
  llvm::StringRef name;                                            // what its rewrites are counted under
  llvm::function_ref<int64_t(Graph& graph, NodeId node)> rewrite;  // how many rewrites it made; a bool will do
};

// Visits the nodes once, in order, without those that rewrites add. Each is offered to the patterns of its op in the
// order given, until one leaves it erased or unread. Did any pattern rewrite anything?
bool apply_patterns(Graph& graph, PassContext& context, std::initializer_list<Pattern> patterns);

}  // namespace plimsoll
