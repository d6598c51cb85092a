#include "runtime/kernels/move.h"

namespace plimsoll {
namespace {

StridedCopy read_by_steps(const KernelCall& k, llvm::ArrayRef<int64_t> steps) {
  const llvm::ArrayRef<int64_t> shape = k.out_shape("y");
  return {copy_nest(shape, row_major_strides(shape), steps), k.out("y"), k.in("x")};
}

// Where slice {starts, steps} reads in a tensor of shape `whole`.
struct Picked {
  Shape steps;
  int64_t base = 0;
  Picked(const Attrs& attrs, llvm::ArrayRef<int64_t> whole) : steps(row_major_strides(whole)) {
    for (size_t d = 0; d < whole.size(); ++d) {
      base += attrs.get_ints("starts")[d] * steps[d];
      steps[d] *= attrs.get_ints("steps")[d];
    }
  }
};

// visit(piece, steps of the piece, steps of the whole, where the piece begins in the whole)
template <typename Visit>
Status visit_pieces(const KernelCall& k, const TensorView& whole, llvm::ArrayRef<TensorView> pieces, Visit visit) {
  const int64_t axis = k.call.get_int("axis");
  const Shape whole_steps = row_major_strides(whole.type.shape);
  int64_t start = 0;
  for (const TensorView& piece : pieces) {
    const Shape own = row_major_strides(piece.type.shape);
    if (Status s = visit(piece, own, whole_steps, element_at(whole, start * whole_steps[axis]))) return s;
    start += piece.type.shape[axis];
  }
  return Status::success();
}

}  // namespace

StridedCopy transpose_copy(const KernelCall& k) {
  const Shape own = row_major_strides(k.in_shape("x"));
  Shape steps;
  for (int64_t d : k.call.get_ints("perm")) steps.push_back(own[d]);
  return read_by_steps(k, steps);
}

StridedCopy expand_copy(const KernelCall& k) {
  return read_by_steps(k, broadcast_steps(k.in_shape("x"), k.out_shape("y")));
}

// Every dimension becomes two: the repeat, over which the source stands still, and itself.
StridedCopy tile_copy(const KernelCall& k) {
  const llvm::ArrayRef<int64_t> shape = k.in_shape("x");
  const Shape x_steps = row_major_strides(shape), y_steps = row_major_strides(k.out_shape("y"));
  LoopNest<2> nest;
  for (size_t d = 0; d < shape.size(); ++d) {
    nest.add_dimension(k.call.get_ints("repeats")[d], {y_steps[d] * shape[d], 0});
    nest.add_dimension(shape[d], {y_steps[d], x_steps[d]});
  }
  return {nest, k.out("y"), k.in("x")};
}

StridedCopy slice_copy(const KernelCall& k) {
  const Picked picked(k.attrs(), k.in_shape("x"));
  StridedCopy copy = read_by_steps(k, picked.steps);
  copy.from = element_at(k.operand("x"), picked.base);
  return copy;
}

StridedCopy slice_grad_copy(const KernelCall& k) {
  const Picked picked(k.attrs(), k.out_shape("dx"));
  const llvm::ArrayRef<int64_t> shape = k.in_shape("dy");
  return {copy_nest(shape, picked.steps, row_major_strides(shape)), element_at(k.result("dx"), picked.base),
          k.in("dy")};
}

Status split_copies(const KernelCall& k, LaunchCopy launch) {
  return visit_pieces(k, k.operand("x"), k.results,
                      [&](const TensorView& piece, const Shape& own, const Shape& whole, void* at) {
                        return launch({copy_nest(piece.type.shape, own, whole), piece.data, at});
                      });
}

Status concat_copies(const KernelCall& k, LaunchCopy launch) {
  return visit_pieces(k, k.result("y"), k.operands,
                      [&](const TensorView& piece, const Shape& own, const Shape& whole, void* at) {
                        return launch({copy_nest(piece.type.shape, whole, own), at, piece.data});
                      });
}

namespace {

// Data movement takes elements of any dtype.
constexpr CudaCandidate move_table[] = {
    {op_transpose, "tiled", ranks_fit},
    {op_expand, "strided_copy", ranks_fit},
    {op_tile, "strided_copy", ranks_fit_twice},
    {op_slice, "strided_copy", ranks_fit},
    {op_slice_grad, "one_pass", ranks_fit},
    {op_split, "parts", ranks_fit},
    {op_concat, "parts", ranks_fit},
    {op_pad, "one_pass", ranks_fit},
    {op_pad_grad, "repeats", ranks_fit_without_f8},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> move_candidates() { return move_table; }

}  // namespace plimsoll
