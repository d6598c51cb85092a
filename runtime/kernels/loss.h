#pragma once

#include "runtime/kernels/cuda_candidate.h"

namespace plimsoll {

enum class LossReduction : uint8_t { Mean, Sum, None };  // in the order of cuda::LossReduction
LossReduction reduction_of(const OpCall& call);

}  // namespace plimsoll
