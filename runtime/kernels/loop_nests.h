#pragma once

// Shapes as kernels of either backend see them: loop nests of strides, and tensors split around one axis.

#include "ir/type.h"
#include "kernels/strides.h"

namespace plimsoll {

// Strides with which a tensor of shape `from` is read at the indices of `to`: 0 along broadcast dimensions.
inline Shape broadcast_steps(llvm::ArrayRef<int64_t> from, llvm::ArrayRef<int64_t> to) {
  Shape steps(to.size(), 0);
  const Shape own = row_major_strides(from);
  const size_t shift = to.size() - from.size();
  for (size_t d = 0; d < from.size(); ++d)
    if (from[d] != 1) steps[d + shift] = own[d];
  return steps;
}

// Tensor 0 of the nest is dense over `shape`, the others broadcast to it.
template <int N>
LoopNest<N> broadcast_nest(llvm::ArrayRef<int64_t> shape, std::array<llvm::ArrayRef<int64_t>, N - 1> operands) {
  std::array<Shape, N> steps;
  steps[0] = row_major_strides(shape);
  for (int t = 1; t < N; ++t) steps[t] = broadcast_steps(operands[t - 1], shape);
  LoopNest<N> nest;
  for (size_t d = 0; d < shape.size(); ++d) {
    std::array<int64_t, N> at_dimension;
    for (int t = 0; t < N; ++t) at_dimension[t] = steps[t][d];
    nest.add_dimension(shape[d], at_dimension);
  }
  return nest;
}

// One copy over the indices of `shape`, with a stride for each dimension on either side.
inline LoopNest<2> copy_nest(llvm::ArrayRef<int64_t> shape, llvm::ArrayRef<int64_t> to, llvm::ArrayRef<int64_t> from) {
  LoopNest<2> nest;
  for (size_t d = 0; d < shape.size(); ++d) nest.add_dimension(shape[d], {to[d], from[d]});
  return nest;
}

inline AxisShape split_axis(llvm::ArrayRef<int64_t> shape, int64_t axis) {
  return {element_count(shape.take_front(axis)), shape[axis], element_count(shape.drop_front(axis + 1))};
}

}  // namespace plimsoll
