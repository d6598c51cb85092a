#pragma once

// Whether training changes a value.

#include "ir/graph.h"

namespace plimsoll {

// Some parameter reaches `value` through floating-point values, so that a gradient may be wanted for it.
bool depends_on_parameter(const Graph& graph, ValueId value);
// The trained ones that do.
std::vector<ValueId> trained_parameters_behind(const Graph& graph, ValueId value);

}  // namespace plimsoll
