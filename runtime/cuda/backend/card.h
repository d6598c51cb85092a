#pragma once

#include "runtime/cuda/border.h"

namespace plimsoll {

// Measures the first card of this machine: a few seconds and a few GiB of it.
Status measure_card(CudaCard& card);

}  // namespace plimsoll
