#pragma once

#include "ir/type.h"

namespace plimsoll {

// `to` [columns, rows] becomes the transpose of `from` [rows, columns], of the same dtype, bit for bit.
void transpose(const TensorView& to, const TensorView& from);

}  // namespace plimsoll
