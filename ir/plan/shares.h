#pragma once

// What an op makes of operands that lie in one placement or another along an axis of the mesh, as its record says.

#include "ir/graph.h"
#include "ir/op_def.h"

namespace plimsoll {

// What is known of a value's placement along an axis.
enum class Share : uint8_t {
  Unknown,
  Alike,  // the same on all ranks, and not known to be a whole: backward may mean it as a summand
  Whole,
  Divided,  // the rank's part of some dimension
  Rows,     // the rank's part of dimension 0
  Partial,  // the rank's summand
};
bool is_divided(Share share);

// One call of an op. Absent operands have no share.
struct SharedCall {
  const OpDef& op;
  const Attrs& attrs;
  llvm::ArrayRef<const Type*> types;  // of operands; null where absent
  llvm::ArrayRef<std::optional<Share>> operands;
  MeshAxis axis;
  Phase phase;
};
using Shares = llvm::SmallVector<Share, 4>;

// Of `count` results. Refuses what cannot be meant: a summand that is read before it is added up, by an op that is not
// linear in it; one that meets a whole in an addition, or another rank's part in a product; and a sum of wholes.
Result<Shares> shares_of_results(const SharedCall& call, size_t count);

// Does it draw random numbers of the rank's own along the axis, or see its own classes?
bool draws_own(const Attrs& attrs, MeshAxis axis);

}  // namespace plimsoll
