#pragma once

#include "runtime/kernels/cuda_candidate.h"

namespace plimsoll {

// The batch's share in a running statistic. The biased variance of {count} elements becomes the unbiased estimate.
double running_share(const OpCall& call);

namespace kernel {
extern const CudaCandidate adamw_fused, sgd_fused, running_update_fused;
}

inline constexpr const CudaCandidate* update_candidates[] = {&kernel::adamw_fused, &kernel::sgd_fused,
                                                             &kernel::running_update_fused};

}  // namespace plimsoll
