#pragma once

#include "kernels/cuda/reduce/reduce_plan.h"
#include "runtime/kernels/cuda_candidate.h"

#include <optional>

namespace plimsoll {

// x of a reduction over {axes}, or over everything where the op has no axes; none when it alternates too often.
std::optional<cuda::AlternatingShape> reduction_shape(const OpCall& call);

// How dy [..., columns] is summed over its rows.
cuda::AlternatingShape row_sums(const Type& dy);

// Operand 0 around the axis of a softmax.
inline AxisShape softmax_axis(const OpCall& call) { return split_axis(call.operand(0).shape, call.get_int("axis")); }

}  // namespace plimsoll
