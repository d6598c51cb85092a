#pragma once

#include "runtime/kernels/cuda_candidate.h"

namespace plimsoll {

enum class LossReduction : uint8_t { Mean, Sum, None };  // in the order of cuda::LossReduction
LossReduction reduction_of(const OpCall& call);

namespace kernel {
extern const CudaCandidate cross_entropy_rows, cross_entropy_grad_rows, nll_loss_rows, nll_loss_grad_elements;
}

inline constexpr const CudaCandidate* loss_candidates[] = {&kernel::cross_entropy_rows,
                                                           &kernel::cross_entropy_grad_rows, &kernel::nll_loss_rows,
                                                           &kernel::nll_loss_grad_elements};

}  // namespace plimsoll
