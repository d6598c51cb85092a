#pragma once

#include "ir/graph.h"

#include <string>

namespace plimsoll {

// What calls have in common that one launch may do together: the op, the types of operands and results and, of updates,
// the weight decay, in which groups of parameters differ. Some updates may write copies and others none. Whether a
// kernel does so, its KernelCandidate says.
std::string launch_kind(const Graph& graph, const Node& node);

}  // namespace plimsoll
