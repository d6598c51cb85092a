#pragma once

#include "runtime/cuda/backend_abi.h"

namespace plimsoll {

// Name, memory and size of the first card of this machine.
Status identify_card(CudaCard& card);

// Measures the first card of this machine: a few seconds and a few GiB of it.
Status measure_card(CudaCard& card);

// What the copies of a card to and from the host move together while both directions are at work.
Status measure_host_copies(int card, double& gb_per_s);

}  // namespace plimsoll
