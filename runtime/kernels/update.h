#pragma once

#include "runtime/kernels/cuda_candidate.h"

namespace plimsoll {

// The batch's share in a running statistic. The biased variance of {count} elements becomes the unbiased estimate.
double running_share(const OpCall& call);

// By which random numbers an update of Adam rounds a parameter in bf16; id 0: to the nearest number.
struct AdamRounding {
  explicit AdamRounding(const OpCall& call)
      : id(static_cast<uint32_t>(call.get_int("rounding_id"))), first_block(call.get_int("first_draw") / 4) {}

  uint32_t id;
  int64_t first_block;
};

}  // namespace plimsoll
