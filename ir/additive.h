#pragma once

// Through which ops a sum over ranks goes: what ranks make of their summands are then summands of the result.

#include "ir/op_def.h"

namespace plimsoll {

enum class Additive : uint8_t {
  Unknown,
  Yes,  // op(a + b) = op(a) + op(b), while the other operands stand still and none is added to the result
  No,   // it is no sum for any summands that differ enough
};

// Is it what an op that computes gradients reads as the gradient of a result? All of its results are additive in that.
bool is_gradient_of_result(const OpDef& op, size_t operand);

// Whether the op's first result is additive in that operand. Ops that are so in all operands together (Linear::InAll)
// give Unknown, unless they have one.
Additive additive_in(const OpDef& op, size_t operand);

}  // namespace plimsoll
