#include "runtime/cpu/transpose.h"

#include "kernels/cpu/move/move.h"

namespace plimsoll {

void transpose(const TensorView& to, const TensorView& from) {
  const int64_t rows = from.type.shape[0], columns = from.type.shape[1];
  LoopNest<2> nest;
  nest.add_dimension(columns, {rows, 1});
  nest.add_dimension(rows, {1, columns});
  cpu::copy_strided(nest, to.data, from.data, static_cast<int>(dtype_bytes(from.type.dtype)));
}

}  // namespace plimsoll
