#include "runtime/cpu/convert.h"

#include "kernels/cpu/elementwise/cast.h"
#include "runtime/kernels/kernel_call.h"

namespace plimsoll {

// The kernel takes no 8-bit floats.
void convert_elements(const TensorView& from, const TensorView& to) {
  if (dtype_bytes(from.type.dtype) > 1 && dtype_bytes(to.type.dtype) > 1)
    return cpu::cast_elements(to.data, scalar_of(to.type.dtype), from.data, scalar_of(from.type.dtype), to.elements());
  for (int64_t i = 0; i < to.elements(); ++i) to.set(i, from.get(i));
}

}  // namespace plimsoll
