#pragma once

#include "runtime/packed_weights.h"

namespace plimsoll {

// The codes and scales of a weight of model_type(). A transposed one is turned into the buffer first.
Packed pack(const PackedWeight& weight, const TensorView& numbers, FloatBuffer& turned);

}  // namespace plimsoll
