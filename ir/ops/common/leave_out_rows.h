#pragma once

// Rows of a batch that count nothing, where ops add rows up: ranks whose rows do not divide evenly have some behind the
// end of the batch.

#include "ir/builder.h"

#include <algorithm>

namespace plimsoll {

// Whether the two functions below know the op.
bool may_leave_out_rows(const OpDef& op);

// Changes the operands and attributes of a call of `op` so that the rows of dimension 0 whose `counts`, a bool for
// each, is false add nothing to the results that chunks of the batch make together.
void leave_out_rows(Builder& b, const OpDef& op, ValueId counts, llvm::MutableArrayRef<ValueId> operands, Attrs& attrs);

// Rows of ranks along the data axis that do not divide evenly: the last ranks have fewer that count.
struct CountingRows {
  ValueId counts = ValueId::None;    // on this rank, a bool for each row
  int64_t samples = 0, of_rank = 0;  // of all ranks, and what each would have with all of its rows
  int64_t counting_on(int64_t rank) const { return std::clamp<int64_t>(samples - rank * of_rank, 0, of_rank); }
};
// As OpDef::across_ranks with the statistics of the rows that count.
llvm::SmallVector<ValueId, 4> across_counting_rows(Builder& b, const Node& node, const CountingRows& rows,
                                                   int64_t ranks, Statistics statistics);

}  // namespace plimsoll
