#pragma once

#include "runtime/packed_weights.h"

namespace plimsoll {

// The codes and scales of a weight of model_type().
Packed pack(const PackedWeight& weight, Tensor numbers);

}  // namespace plimsoll
