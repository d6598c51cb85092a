#pragma once

#include "ir/graph.h"

namespace plimsoll {

// Do other stages of a pipeline wait for the node? Then it is never erased, merged with an equal one, or made again.
bool is_awaited(const Node& node);

}  // namespace plimsoll
