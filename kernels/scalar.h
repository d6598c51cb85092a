#pragma once

// Element types at the border of the kernels, in the order of the compiler's own (ir/type.h).

#include <cstdint>

namespace plimsoll {

enum class Scalar : uint8_t {
  F64,
  F32,
  BF16,
  F16,
  F8E4M3,
  F8E5M2,
  I64,
  I32,
  I16,
  I8,
  U64,
  U32,
  U16,
  U8,
  Bool,
};

}  // namespace plimsoll
