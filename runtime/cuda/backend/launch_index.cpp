#include "kernels/cuda/index/along_axis.h"
#include "kernels/cuda/index/index.h"
#include "kernels/cuda/move/move.h"
#include "runtime/cuda/backend/launched.h"
#include "runtime/kernels/loop_nests.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

// Ops that pick or put elements by index, or go by their order along an axis.

namespace plimsoll {
namespace {

cuda::Indices indices_of(const CudaCall& k, size_t operand) { return {k.in(operand), k.in_scalar(operand)}; }

Status launch_gather(const CudaCall& k) {
  const AxisSplit x(k.call.operand(0).shape, k.call.attrs.get_int("axis"));
  return launched(k, cuda::gather_rows(k.out(0), k.in(0), indices_of(k, 1), x.outer, x.length, k.operands[1].elements(),
                                       x.inner * element_bytes(k), k.stream));
}

Status launch_gather_grad(const CudaCall& k) {
  const AxisSplit dx(k.results[0].type.shape, k.call.attrs.get_int("axis"));
  return launched(k, cuda::gather_rows_grad(k.out_scalar(0), k.out(0), k.in(1), k.in(2), indices_of(k, 0), dx.outer,
                                            dx.length, k.operands[0].elements(), dx.inner, k.workspace, k.stream));
}

// Indices in operand 1 along an axis of a tensor of shape `whole`.
cuda::ElementIndices element_indices(const CudaCall& k, llvm::ArrayRef<int64_t> whole) {
  const int64_t axis = k.call.attrs.get_int("axis");
  const Shape own = row_major_strides(whole), &shape = k.call.operand(1).shape;
  Shape steps = own;
  steps[axis] = 0;
  return {copy_nest(shape, row_major_strides(shape), steps), indices_of(k, 1), whole[axis], own[axis]};
}

// Coordinates in operand 1 into a tensor of shape `whole`.
cuda::TupleIndices tuple_indices(const CudaCall& k, llvm::ArrayRef<int64_t> whole, int64_t batch_dims) {
  llvm::ArrayRef<int64_t> shape = k.call.operand(1).shape;
  const int64_t depth = shape.back();
  cuda::TupleIndices places;
  places.indices = indices_of(k, 1);
  places.tuples = element_count(shape.drop_back());
  places.tuples_per_batch = element_count(shape.drop_back().drop_front(batch_dims));
  places.batch_size = element_count(whole.drop_front(batch_dims));
  places.count = element_count(whole.drop_front(batch_dims + depth));
  places.depth = static_cast<int>(depth);
  llvm::copy(whole.slice(batch_dims, depth), places.sizes);
  llvm::copy(llvm::ArrayRef<int64_t>(row_major_strides(whole)).slice(batch_dims, depth), places.strides);
  return places;
}

Status launch_gather_elements(const CudaCall& k) {
  return launched(k, cuda::gather_elements(element_indices(k, k.call.operand(0).shape), k.out(0), k.in(0),
                                           element_bytes(k), k.stream));
}

Status launch_gather_nd(const CudaCall& k) {
  const auto places = tuple_indices(k, k.call.operand(0).shape, k.call.attrs.get_int("batch_dims"));
  return launched(k, cuda::gather_tuples(places, k.out(0), k.in(0), element_bytes(k), k.stream));
}

Status launch_one_hot(const CudaCall& k) {
  const AxisSplit y(k.results[0].type.shape, k.call.attrs.get_int("axis"));
  return launched(
      k, cuda::one_hot(k.out(0), indices_of(k, 0), k.in(1), y.outer, y.length, y.inner, element_bytes(k), k.stream));
}

// ---- scatter ----

cuda::Reduction reduction_of(const Attrs& attrs) {
  llvm::StringRef name = attrs.get_string("reduction", "none");
  if (name == "add") return cuda::Reduction::Add;
  if (name == "mul") return cuda::Reduction::Mul;
  if (name == "max") return cuda::Reduction::Max;
  return name == "min" ? cuda::Reduction::Min : cuda::Reduction::None;
}

// The result starts as a copy of x, if it does not stand in x's place already.
Status copy_operand(const CudaCall& k) {
  if (k.out(0) == k.in(0)) return Status::success();
  return launched(k, cuda::copy_bytes(k.out(0), k.in(0), k.results[0].type.bytes(), k.stream));
}

Status launch_scatter_elements(const CudaCall& k) {
  if (Status s = copy_operand(k)) return s;
  const Type& y = k.results[0].type;
  return launched(k, cuda::scatter_elements(reduction_of(k.call.attrs), element_indices(k, y.shape), k.out_scalar(0),
                                            k.out(0), y.elements(), k.in(2), k.workspace, k.stream));
}

Status launch_scatter_nd(const CudaCall& k) {
  if (Status s = copy_operand(k)) return s;
  const Type& y = k.results[0].type;
  return launched(k, cuda::scatter_tuples(reduction_of(k.call.attrs), tuple_indices(k, y.shape, 0), k.out_scalar(0),
                                          k.out(0), y.elements(), k.in(2), k.workspace, k.stream));
}

// ---- Along an axis ----

cuda::Axis axis_of(const CudaCall& k) {
  const AxisSplit x(k.call.operand(0).shape, k.call.attrs.get_int("axis"));
  return {x.outer, x.length, x.inner};
}

Status launch_cumsum(const CudaCall& k) {
  const auto ends = k.call.attrs.get_int("exclusive") ? cuda::ScanEnds::Exclusive : cuda::ScanEnds::Inclusive;
  const auto start = k.call.attrs.get_int("reverse") ? cuda::ScanStart::Last : cuda::ScanStart::First;
  return launched(k, cuda::running_sums(k.out_scalar(0), k.out(0), k.in(0), axis_of(k), ends, start, k.stream));
}

Status launch_triangular(const CudaCall& k) {
  llvm::ArrayRef<int64_t> shape = k.results[0].type.shape;
  const auto triangle = k.call.attrs.get_int("upper") ? cuda::Triangle::Upper : cuda::Triangle::Lower;
  return launched(
      k, cuda::triangular(triangle, k.call.attrs.get_int("k"), k.out(0), k.in(0), element_count(shape.drop_back(2)),
                          shape[shape.size() - 2], shape.back(), element_bytes(k), k.stream));
}

Status launch_reverse_sequence(const CudaCall& k) {
  const int64_t batch = k.call.attrs.get_int("batch_axis"), time = k.call.attrs.get_int("time_axis");
  const Shape &shape = k.results[0].type.shape, strides = row_major_strides(shape);
  const cuda::Sequences sequences{indices_of(k, 1), shape[batch],  strides[batch],
                                  shape[time],      strides[time], std::min(strides[batch], strides[time])};
  return launched(
      k, cuda::reverse_sequences(sequences, k.out(0), k.in(0), k.results[0].elements(), element_bytes(k), k.stream));
}

Status launch_top_k(const CudaCall& k) {
  const auto extreme = k.call.attrs.get_int("largest", 1) ? cuda::Extreme::Largest : cuda::Extreme::Smallest;
  return launched(k, cuda::top_k(extreme, k.call.attrs.get_int("k"), k.in_scalar(0), k.out(0), k.out<int64_t>(1),
                                 k.in(0), axis_of(k), k.stream));
}

template <cuda::Extreme extreme>
Status launch_arg(const CudaCall& k) {
  const auto ties = k.call.attrs.get_int("select_last") ? cuda::Ties::Last : cuda::Ties::First;
  return launched(k,
                  cuda::arg_extreme(extreme, ties, k.in_scalar(0), k.out<int64_t>(0), k.in(0), axis_of(k), k.stream));
}

constexpr CudaLauncher launchers[] = {
    {"gather", "rows", launch_gather},
    {"gather_grad", "sorted", launch_gather_grad},
    {"gather_elements", "elements", launch_gather_elements},
    {"gather_nd", "tuples", launch_gather_nd},
    {"one_hot", "elements", launch_one_hot},
    {"scatter_elements", "sorted", launch_scatter_elements},
    {"scatter_nd", "sorted", launch_scatter_nd},
    {"cumsum", "scan", launch_cumsum},
    {"triangular", "elements", launch_triangular},
    {"reverse_sequence", "elements", launch_reverse_sequence},
    {"top_k", "repeated_search", launch_top_k},
    {"arg_max", "search", launch_arg<cuda::Extreme::Largest>},
    {"arg_min", "search", launch_arg<cuda::Extreme::Smallest>},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> cuda_index_launchers() { return launchers; }

}  // namespace plimsoll
