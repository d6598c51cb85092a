#pragma once

// Ops that have an activation inside them share this with it.

#include "ir/attrs.h"

namespace plimsoll {

// gelu at x, and its derivative there, of the form that {approximate} names.
double gelu(double x, const Attrs& attrs);
double gelu_slope(double x, const Attrs& attrs);

}  // namespace plimsoll
