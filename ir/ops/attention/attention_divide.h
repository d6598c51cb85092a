#pragma once

#include "ir/op_def.h"

namespace plimsoll {

// Attention on a rank's heads (OpDef::divide).
std::optional<DividedCall> attention_divide(const OpCall& call, llvm::ArrayRef<Type> results, const CutAt& known,
                                            int64_t ranks);

}  // namespace plimsoll
