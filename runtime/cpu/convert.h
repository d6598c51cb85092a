#pragma once

#include "ir/type.h"

namespace plimsoll {

// Floats as those of another type, rounded to nearest even.
void convert_elements(const TensorView& from, const TensorView& to);

}  // namespace plimsoll
