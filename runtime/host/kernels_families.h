#pragma once

// The families the kernel table is made of, one launch_*.cpp each, and what their launchers share.

#include "kernels/cpu/strides.h"
#include "runtime/host/kernels.h"

namespace plimsoll {

llvm::ArrayRef<CpuKernel> unary_kernels();
llvm::ArrayRef<CpuKernel> binary_kernels();
llvm::ArrayRef<CpuKernel> move_kernels();
llvm::ArrayRef<CpuKernel> index_kernels();
llvm::ArrayRef<CpuKernel> product_kernels();
llvm::ArrayRef<CpuKernel> reduce_kernels();
llvm::ArrayRef<CpuKernel> norm_kernels();
llvm::ArrayRef<CpuKernel> loss_kernels();
llvm::ArrayRef<CpuKernel> attention_kernels();
llvm::ArrayRef<CpuKernel> update_kernels();
llvm::ArrayRef<CpuKernel> conv_kernels();
llvm::ArrayRef<CpuKernel> pool_kernels();
llvm::ArrayRef<CpuKernel> resize_kernels();

// ---- What kernels accept ----

// Every present operand and every result is f32, and no rank exceeds what the loop nests hold.
bool all_f32(const OpCall& call, llvm::ArrayRef<Type> results);
// Ranks alone: for kernels that move bytes of any dtype.
bool ranks_fit(const OpCall& call, llvm::ArrayRef<Type> results);
// All that is a float is f32; integers and bools as they are.
bool floats_are_f32(const OpCall& call, llvm::ArrayRef<Type> results);

// ---- Shapes as kernels see them ----

// Strides with which a tensor of shape `from` is read at the indices of `to`: 0 along broadcast dimensions.
Shape broadcast_steps(llvm::ArrayRef<int64_t> from, llvm::ArrayRef<int64_t> to);

// Tensor 0 of the nest is dense over `shape`, the others broadcast to it.
template <int N>
cpu::LoopNest<N> broadcast_nest(llvm::ArrayRef<int64_t> shape,
                                std::array<llvm::ArrayRef<int64_t>, N - 1> operands) {
  std::array<Shape, N> steps;
  steps[0] = row_major_strides(shape);
  for (int t = 1; t < N; ++t) steps[t] = broadcast_steps(operands[t - 1], shape);
  cpu::LoopNest<N> nest;
  for (size_t d = 0; d < shape.size(); ++d) {
    std::array<int64_t, N> at_dimension;
    for (int t = 0; t < N; ++t) at_dimension[t] = steps[t][d];
    nest.add_dimension(shape[d], at_dimension);
  }
  return nest;
}

// A tensor seen as [outer, length, inner] around one axis.
struct AxisSplit {
  int64_t outer = 1, length = 1, inner = 1;
  AxisSplit(llvm::ArrayRef<int64_t> shape, int64_t axis)
      : outer(element_count(shape.take_front(axis))),
        length(shape[axis]),
        inner(element_count(shape.drop_front(axis + 1))) {}
};

// One copy over the indices of `shape`, with a stride for each dimension on either side.
cpu::LoopNest<2> copy_nest(llvm::ArrayRef<int64_t> shape, llvm::ArrayRef<int64_t> to,
                           llvm::ArrayRef<int64_t> from);

}  // namespace plimsoll
