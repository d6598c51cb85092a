#pragma once

#include "ir/type.h"

namespace plimsoll {

// `to` [columns, rows] becomes the transpose of `from` [rows, columns], of the same dtype, bit for bit.
void transpose(const TensorView& to, const TensorView& from);
// `to` [rows, kernel..., channels] becomes the weight `from` [rows, channels, kernel...], and the other way round.
void put_channels_last(const TensorView& to, const TensorView& from);
void put_channels_second(const TensorView& to, const TensorView& from);

}  // namespace plimsoll
