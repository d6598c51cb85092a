#pragma once

// What attention and its gradients compute, for the interpreter and for tests of kernels.
// ir/ops/attention/attention.cpp has the formulas and the operands.

#include "ir/op_def.h"

namespace plimsoll {

Status attention_reference(const ReferenceCall& call);
Status attention_grad_reference(const ReferenceCall& call);
Status attention_mask_grad_reference(const ReferenceCall& call);
Status attention_grad_with_mask_reference(const ReferenceCall& call);
Status attention_sinks_grad_reference(const ReferenceCall& call);

}  // namespace plimsoll
