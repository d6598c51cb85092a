#pragma once

#include "kernels/cuda/reduce/reduce_plan.h"
#include "runtime/kernels/cuda_candidate.h"

#include <optional>

namespace plimsoll {

// x of a reduction over {axes}, or over everything where the op has no axes; none when it alternates too often.
std::optional<cuda::AlternatingShape> reduction_shape(const OpCall& call);

// How dy [..., columns] is summed over its rows.
cuda::AlternatingShape row_sums(const Type& dy);

// Operand 0 around the axis of a softmax.
inline AxisSplit softmax_axis(const OpCall& call) { return {call.operand(0).shape, call.get_int("axis")}; }

namespace kernel {
extern const CudaCandidate reduce_sum_two_stages, reduce_mean_two_stages, reduce_max_two_stages, reduce_min_two_stages,
    reduce_prod_two_stages, sum_squares_two_stages, softmax_rows, softmax_grad_rows, log_softmax_rows,
    log_softmax_grad_rows, hardmax_rows;
}

inline constexpr const CudaCandidate* reduce_candidates[] = {&kernel::reduce_sum_two_stages,
                                                             &kernel::reduce_mean_two_stages,
                                                             &kernel::reduce_max_two_stages,
                                                             &kernel::reduce_min_two_stages,
                                                             &kernel::reduce_prod_two_stages,
                                                             &kernel::sum_squares_two_stages,
                                                             &kernel::softmax_rows,
                                                             &kernel::softmax_grad_rows,
                                                             &kernel::log_softmax_rows,
                                                             &kernel::log_softmax_grad_rows,
                                                             &kernel::hardmax_rows};

}  // namespace plimsoll
