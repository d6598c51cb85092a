#pragma once

#include "ir/op_def.h"
#include "kernels/cuda/reduce/reduce_plan.h"

#include "llvm/ADT/STLExtras.h"

#include <optional>

namespace plimsoll {

// Operand 0 of a reduction over {axes}, or over everything where the op has no axes; none when it alternates too often.
inline std::optional<cuda::AlternatingShape> reduction_shape(const OpCall& call) {
  cuda::AlternatingShape shape;
  const llvm::ArrayRef<int64_t> sizes = call.operand(0).shape, axes = call.attrs.get_ints("axes");
  const bool all = !call.attrs.has("axes");
  for (size_t d = 0; d < sizes.size(); ++d)
    if (!shape.add(sizes[d], all || llvm::is_contained(axes, static_cast<int64_t>(d)))) return std::nullopt;
  return shape;
}

}  // namespace plimsoll
