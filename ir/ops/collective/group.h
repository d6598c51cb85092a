#pragma once

// The attributes that ops of several ranks share: along which axis of the mesh their ranks differ, and how many there
// are.

#include "ir/mesh.h"
#include "ir/ops/common/support.h"

namespace plimsoll {

inline constexpr AttrSpecs group_attrs{{"axis", AttrKind::String}, {"ranks", AttrKind::Int}};
Status check_group(const OpCall& call);
// An attribute that names one rank of the group.
Status check_member(const OpCall& call, llvm::StringRef name);

// The reference of a collective on one rank, which is then its whole group.
template <CollectiveFn members>
Status alone(const ReferenceCall& call) {
  if (call.get_int("ranks") == 1) return members(call), Status::success();
  return model_error("this op is one of " + llvm::Twine(call.get_int("ranks")) + " ranks, and one is here");
}

// Of samples: one rank along data.
inline Attrs group_of_one() { return {{"axis", std::string("data")}, {"ranks", int64_t{1}}}; }

}  // namespace plimsoll
