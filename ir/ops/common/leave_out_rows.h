#pragma once

// Rows of a batch that count nothing, where ops add rows up: ranks whose rows do not divide evenly have some behind the
// end of the batch.

#include "ir/builder.h"

namespace plimsoll {

// Changes the operands and attributes of a call of `op` so that the rows of dimension 0 whose `counts`, a bool for
// each, is false add nothing to the results that chunks of the batch make together. Returns false where the op knows no
// such change.
bool leave_out_rows(Builder& b, const OpDef& op, ValueId counts, llvm::MutableArrayRef<ValueId> operands, Attrs& attrs);

}  // namespace plimsoll
