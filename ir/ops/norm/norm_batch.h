#pragma once

// Batch norms of one rank (norm_batch.cpp) and of several (norm_batch_ranks.cpp) share this: x is [N, C, ...], or
// [N, ..., C] with {channels_last}.

#include "ir/ops/common/leave_out_rows.h"
#include "ir/ops/norm/norm.h"

namespace plimsoll {

NormLayout channel_layout(const OpCall& call);
Shape channel_shape(const OpCall& call);  // [C]
bool has_relu(const Attrs& attrs);
bool has_silu(const Attrs& attrs);
Status check_batch_norm_activation(const OpCall& call);
void activate_batch_norm(const Attrs& attrs, std::vector<double>& y);

Status check_batch_norm_input(const OpCall& call);
// Operands x, scale, mean, var, bias, y and more_dy of what goes backward, and with dy besides.
Status check_batch_norm_backward(const OpCall& call);
Status check_batch_norm_gradient(const OpCall& call);
// What of a gradient goes back through the ReLU or SiLU that read z.
double passed_share(const Attrs& attrs, double z);
// dy plus more_dy as far as the ReLU behind the norm let elements through, or times the SiLU's slope; all of it without
// either.
std::vector<double> passed_gradient(const ReferenceCall& call, const NormOperands& in, std::vector<double> dy);

// See OpDef::across_ranks.
llvm::SmallVector<ValueId, 4> batch_norm_across_ranks(Builder& b, const Node& node, int64_t ranks,
                                                      Statistics statistics);
// See across_counting_rows().
llvm::SmallVector<ValueId, 4> batch_norm_of_counting_rows(Builder& b, const Node& node, const CountingRows& rows,
                                                          int64_t ranks);
llvm::SmallVector<ValueId, 4> batch_norm_of_own_counting_rows(Builder& b, const Node& node, const CountingRows& rows,
                                                              int64_t ranks);

}  // namespace plimsoll
