#pragma once

// The attributes that ops of several ranks share: along which axis of the mesh their ranks differ, and how many there
// are.

#include "ir/mesh.h"
#include "ir/ops/common/support.h"

namespace plimsoll {

inline constexpr AttrSpecs group_attrs{{"axis", AttrKind::String}, {"ranks", AttrKind::Int}};
Status check_group(const OpCall& call);

}  // namespace plimsoll
