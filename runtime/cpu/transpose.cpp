#include "runtime/cpu/transpose.h"

#include "kernels/cpu/move/move.h"

namespace plimsoll {
namespace {

// The last two of three dimensions change places.
void turn_rows(const TensorView& to, const TensorView& from, int64_t middle, int64_t last) {
  LoopNest<2> nest;
  nest.add_dimension(to.type.shape[0], {middle * last, middle * last});
  nest.add_dimension(last, {middle, 1});
  nest.add_dimension(middle, {1, last});
  cpu::copy_strided(nest, to.data, from.data, static_cast<int>(dtype_bytes(from.type.dtype)));
}

}  // namespace

void transpose(const TensorView& to, const TensorView& from) {
  const int64_t rows = from.type.shape[0], columns = from.type.shape[1];
  LoopNest<2> nest;
  nest.add_dimension(columns, {rows, 1});
  nest.add_dimension(rows, {1, columns});
  cpu::copy_strided(nest, to.data, from.data, static_cast<int>(dtype_bytes(from.type.dtype)));
}

void put_channels_last(const TensorView& to, const TensorView& from) {
  const llvm::ArrayRef<int64_t> shape = from.type.shape;
  turn_rows(to, from, shape[1], element_count(shape.drop_front(2)));
}

void put_channels_second(const TensorView& to, const TensorView& from) {
  const llvm::ArrayRef<int64_t> shape = from.type.shape;
  turn_rows(to, from, element_count(shape.drop_front().drop_back()), shape.back());
}

}  // namespace plimsoll
