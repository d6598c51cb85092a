#pragma once

#include "ir/graph.h"

namespace plimsoll {

// A trained parameter's 16-bit copy that outlives a step: at the start of every call it is the parameter, rounded.
inline bool is_kept_copy(StateRole role, const StateInit& init) {
  return role == StateRole::Parameter && init.kind == StateInit::Kind::CopyOf;
}

}  // namespace plimsoll
