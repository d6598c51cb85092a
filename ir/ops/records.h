#pragma once

// The records of all ops by name: op_relu and so on.

#include "ir/op_def.h"

namespace plimsoll {

#define PLIMSOLL_OP(name) extern const OpDef op_##name;
#include "ir/ops/ops.def"
#undef PLIMSOLL_OP

}  // namespace plimsoll
