#pragma once

#include "runtime/kernels/cuda_candidate.h"

namespace plimsoll {

// The batch's share in a running statistic. The biased variance of {count} elements becomes the unbiased estimate.
double running_share(const OpCall& call);

}  // namespace plimsoll
