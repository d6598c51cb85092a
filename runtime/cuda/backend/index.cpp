#include "kernels/cuda/index/index.h"
#include "kernels/cuda/index/along_axis.h"
#include "kernels/cuda/move/move.h"
#include "runtime/cuda/backend/launcher.h"
#include "runtime/kernels/loop_nests.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

// Ops that pick or put elements by index, or go by their order along an axis.

namespace plimsoll {
namespace {

cuda::Indices indices_of(const CudaCall& k, PortKey operand = "indices") {
  return {k.in(operand), k.in_scalar(operand)};
}

Status launch_gather(const CudaCall& k) {
  const AxisShape x = split_axis(k.in_shape("x"), k.call.get_int("axis"));
  return launched(k, cuda::gather_rows(k.out("y"), k.in("x"), indices_of(k), x.outer, x.length,
                                       k.call["indices"].elements(), x.inner * k.element_bytes(), k.stream));
}

Status launch_gather_grad(const CudaCall& k) {
  const AxisShape dx = split_axis(k.out_shape("dx"), k.call.get_int("axis"));
  return launched(k, cuda::gather_rows_grad(k.out_scalar("dx"), k.out("dx"), k.in_scalar("dy"), k.in("dy"),
                                            k.in("addend"), indices_of(k), dx.outer, dx.length,
                                            k.call["indices"].elements(), dx.inner, k.workspace, k.stream));
}

Status launch_gather_grad_scan(const CudaCall& k) {
  const AxisShape dx = split_axis(k.out_shape("dx"), k.call.get_int("axis"));
  return launched(k, cuda::gather_rows_grad_by_scan(k.out_scalar("dx"), k.out("dx"), k.in_scalar("dy"), k.in("dy"),
                                                    k.in("addend"), indices_of(k), dx.outer, dx.length,
                                                    k.call["indices"].elements(), dx.inner, k.stream));
}

Status launch_sort_indices(const CudaCall& k) {
  return launched(
      k, cuda::sort_indices(k.out<uint32_t>("order"), k.out<uint32_t>("rows"), k.out<uint32_t>("starts"), indices_of(k),
                            k.call["indices"].elements(), k.call.get_int("size"), k.workspace, k.stream));
}

// Indices along an axis of a tensor of shape `whole`, which pick elements of shape `picked`.
cuda::ElementIndices element_indices(const CudaCall& k, llvm::ArrayRef<int64_t> whole, llvm::ArrayRef<int64_t> picked) {
  const int64_t axis = k.call.get_int("axis");
  const Shape own = row_major_strides(whole);
  Shape steps = own;
  steps[axis] = 0;
  return {copy_nest(picked, row_major_strides(picked), steps), indices_of(k), k.call["indices"].elements(), whole[axis],
          own[axis]};
}

cuda::IndexLines index_lines(const CudaCall& k, llvm::ArrayRef<int64_t> whole, llvm::ArrayRef<int64_t> picked) {
  const int64_t axis = k.call.get_int("axis"), count = picked[axis];
  const AxisShape lines = split_axis(whole, axis);
  const int64_t sets = k.call["indices"].elements() / std::max<int64_t>(count * lines.inner, 1);
  return {indices_of(k), lines.outer, sets, lines.length, count, lines.inner};
}

// Coordinates into a tensor of shape `whole`.
cuda::TupleIndices tuple_indices(const CudaCall& k, llvm::ArrayRef<int64_t> whole, int64_t batch_dims) {
  llvm::ArrayRef<int64_t> shape = k.in_shape("indices");
  const int64_t depth = shape.back();
  cuda::TupleIndices places;
  places.indices = indices_of(k);
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
  return launched(k, cuda::gather_elements(element_indices(k, k.in_shape("x"), k.out_shape("y")), k.out("y"), k.in("x"),
                                           k.element_bytes(), k.stream));
}

Status launch_gather_lines(const CudaCall& k) {
  return launched(k, cuda::gather_lines(index_lines(k, k.in_shape("x"), k.out_shape("y")), k.out("y"), k.in("x"),
                                        k.element_bytes(), k.stream));
}

Status launch_gather_elements_grad_lines(const CudaCall& k) {
  return launched(k, cuda::add_to_lines(k.out_scalar("dx"), index_lines(k, k.out_shape("dx"), k.in_shape("dy")),
                                        k.out("dx"), k.in("addend"), k.in("dy"), k.stream));
}

Status launch_gather_elements_grad_shared(const CudaCall& k) {
  return launched(k, cuda::add_to_shared_lines(k.out_scalar("dx"), index_lines(k, k.out_shape("dx"), k.in_shape("dy")),
                                               k.out("dx"), k.in("addend"), k.in("dy"), k.workspace, k.stream));
}

Status launch_gather_nd(const CudaCall& k) {
  const auto places = tuple_indices(k, k.in_shape("x"), k.call.get_int("batch_dims"));
  return launched(k, cuda::gather_tuples(places, k.out("y"), k.in("x"), k.element_bytes(), k.stream));
}

Status launch_one_hot(const CudaCall& k) {
  const AxisShape y = split_axis(k.out_shape("y"), k.call.get_int("axis"));
  return launched(k, cuda::one_hot(k.out("y"), indices_of(k), k.in("values"), y.outer, y.length, y.inner,
                                   k.element_bytes(), k.stream));
}

// ---- scatter ----

cuda::Reduction reduction_of(const OpCall& call) {
  const llvm::StringRef name = call.get_string("reduction");
  if (name == "add") return cuda::Reduction::Add;
  if (name == "mul") return cuda::Reduction::Mul;
  if (name == "max") return cuda::Reduction::Max;
  return name == "min" ? cuda::Reduction::Min : cuda::Reduction::None;
}

Status launch_segment_reduce(const CudaCall& k) {
  const llvm::ArrayRef<int64_t> shape = k.out_shape("y");
  const cuda::Segments segments{k.in<uint32_t>("order"), k.in<uint32_t>("rows"), k.in<uint32_t>("starts"),
                                k.call["order"].elements(), shape.front()};
  return launched(
      k, cuda::segment_reduce(reduction_of(k.call), k.out_scalar("y"), k.out("y"), k.in_scalar("x"), k.in("x"),
                              k.in("base"), segments, 1, element_count(shape.drop_front()), k.workspace, k.stream));
}

Status launch_gather_sum(const CudaCall& k) {
  const llvm::ArrayRef<int64_t> x = k.in_shape("x");
  const cuda::Segments segments{k.in<uint32_t>("order"), k.in<uint32_t>("rows"), k.in<uint32_t>("starts"),
                                k.call["order"].elements(), k.out_shape("y").front()};
  cuda::GatheredRows rows{k.in("x"), k.in_scalar("x"), indices_of(k, "picks"), x[0], x[1], k.call.get_int("heads")};
  if (k.has("weights")) rows.weights = k.in("weights"), rows.weight_type = k.in_scalar("weights");
  cuda::GatheredDots dots;
  if (k.has("factors")) dots = {k.in("factors"), k.in_scalar("factors"), k.out<float>("dots")};
  return launched(
      k, cuda::gather_sum(k.out_scalar("y"), k.out("y"), k.in("base"), rows, dots, segments, k.workspace, k.stream));
}

// The result starts as a copy of what it adds to or writes into, if it does not stand in that place already, or as
// zeros.
Status begin_with(const CudaCall& k, PortKey operand) {
  const TensorView& y = k.results[0];
  void* to = y.as<void>();
  if (!k.has(operand)) return launched(k, cudaMemsetAsync(to, 0, static_cast<size_t>(y.type.bytes()), k.stream));
  if (to == k.in(operand)) return Status::success();
  return launched(k, cuda::copy_bytes(to, k.in(operand), y.type.bytes(), k.stream));
}

Status launch_scatter_elements(const CudaCall& k) {
  if (Status s = begin_with(k, "x")) return s;
  return launched(
      k, cuda::scatter_elements(reduction_of(k.call), element_indices(k, k.out_shape("y"), k.in_shape("updates")),
                                k.out_scalar("y"), k.out("y"), k.elements(), k.in("updates"), k.workspace, k.stream));
}

Status launch_gather_elements_grad_sorted(const CudaCall& k) {
  if (Status s = begin_with(k, "addend")) return s;
  return launched(
      k, cuda::scatter_elements(cuda::Reduction::Add, element_indices(k, k.out_shape("dx"), k.in_shape("dy")),
                                k.out_scalar("dx"), k.out("dx"), k.elements(), k.in("dy"), k.workspace, k.stream));
}

Status launch_scatter_lines(const CudaCall& k) {
  return launched(k, cuda::add_to_lines(k.out_scalar("y"), index_lines(k, k.out_shape("y"), k.in_shape("updates")),
                                        k.out("y"), k.in("x"), k.in("updates"), k.stream));
}

Status launch_scatter_nd(const CudaCall& k) {
  if (Status s = begin_with(k, "x")) return s;
  return launched(k,
                  cuda::scatter_tuples(reduction_of(k.call), tuple_indices(k, k.out_shape("y"), 0), k.out_scalar("y"),
                                       k.out("y"), k.elements(), k.in("updates"), k.workspace, k.stream));
}

// ---- Along an axis ----

AxisShape axis_of(const CudaCall& k) { return split_axis(k.in_shape("x"), k.call.get_int("axis")); }

cuda::ScanEnds scan_ends(const OpCall& call) {
  return call.get_int("exclusive") ? cuda::ScanEnds::Exclusive : cuda::ScanEnds::Inclusive;
}

cuda::ScanStart scan_start(const OpCall& call) {
  return call.get_int("reverse") ? cuda::ScanStart::Last : cuda::ScanStart::First;
}

Status launch_cumsum(const CudaCall& k) {
  return launched(k, cuda::running_sums(k.out_scalar("y"), k.out("y"), k.in("x"), axis_of(k), scan_ends(k.call),
                                        scan_start(k.call), k.stream));
}

Status launch_cumsum_parts(const CudaCall& k) {
  return launched(k, cuda::running_sums_by_parts(k.out_scalar("y"), k.out("y"), k.in("x"), axis_of(k),
                                                 scan_ends(k.call), scan_start(k.call), k.workspace, k.stream));
}

Status launch_triangular(const CudaCall& k) {
  llvm::ArrayRef<int64_t> shape = k.out_shape("y");
  const auto triangle = k.call.get_int("upper") ? cuda::Triangle::Upper : cuda::Triangle::Lower;
  return launched(
      k, cuda::triangular(triangle, k.call.get_int("k"), k.out("y"), k.in("x"), element_count(shape.drop_back(2)),
                          shape[shape.size() - 2], shape.back(), k.element_bytes(), k.stream));
}

Status launch_reverse_sequence(const CudaCall& k) {
  const int64_t batch = k.call.get_int("batch_axis"), time = k.call.get_int("time_axis");
  const llvm::ArrayRef<int64_t> shape = k.out_shape("y");
  const Shape strides = row_major_strides(shape);
  const cuda::Sequences sequences{indices_of(k, "lens"), shape[batch],  strides[batch],
                                  shape[time],           strides[time], std::min(strides[batch], strides[time])};
  return launched(k,
                  cuda::reverse_sequences(sequences, k.out("y"), k.in("x"), k.elements(), k.element_bytes(), k.stream));
}

cuda::Extreme extreme_of(const CudaCall& k) {
  return k.call.get_int("largest") ? cuda::Extreme::Largest : cuda::Extreme::Smallest;
}

Status launch_sorted_top_k(const CudaCall& k) {
  return launched(k, cuda::top_k_sorted(extreme_of(k), k.call.get_int("k"), k.in_scalar("x"), k.out("values"),
                                        k.out<int64_t>("indices"), k.in("x"), axis_of(k), k.stream));
}

template <cuda::LineThreads threads>
Status launch_top_k(const CudaCall& k) {
  return launched(k, cuda::top_k(threads, extreme_of(k), k.call.get_int("k"), k.in_scalar("x"), k.out("values"),
                                 k.out<int64_t>("indices"), k.in("x"), axis_of(k), k.stream));
}

template <cuda::Extreme extreme>
Status launch_arg(const CudaCall& k) {
  const auto ties = k.call.get_int("select_last") ? cuda::Ties::Last : cuda::Ties::First;
  return launched(
      k, cuda::arg_extreme(extreme, ties, k.in_scalar("x"), k.out<int64_t>("y"), k.in("x"), axis_of(k), k.stream));
}

constexpr CudaLauncher index_table[] = {
    {op_gather, "rows", launch_gather},
    {op_gather_grad, "scan", launch_gather_grad_scan},
    {op_gather_grad, "sorted", launch_gather_grad},
    {op_sort_indices, "radix", launch_sort_indices},
    {op_segment_reduce, "rows", launch_segment_reduce},
    {op_gather_sum, "groups", launch_gather_sum},
    {op_gather_elements, "lines", launch_gather_lines},
    {op_gather_elements, "elements", launch_gather_elements},
    {op_gather_elements_grad, "shared_lines", launch_gather_elements_grad_shared},
    {op_gather_elements_grad, "lines", launch_gather_elements_grad_lines},
    {op_gather_elements_grad, "sorted", launch_gather_elements_grad_sorted},
    {op_gather_nd, "tuples", launch_gather_nd},
    {op_one_hot, "elements", launch_one_hot},
    {op_scatter_elements, "lines", launch_scatter_lines},
    {op_scatter_elements, "sorted", launch_scatter_elements},
    {op_scatter_nd, "sorted", launch_scatter_nd},
    {op_cumsum, "scan", launch_cumsum},
    {op_cumsum, "parts", launch_cumsum_parts},
    {op_triangular, "elements", launch_triangular},
    {op_reverse_sequence, "elements", launch_reverse_sequence},
    {op_top_k, "short_lines", launch_top_k<cuda::LineThreads::One>},
    {op_top_k, "sorted_lines", launch_sorted_top_k},
    {op_top_k, "repeated_search", launch_top_k<cuda::LineThreads::Warp>},
    {op_arg_max, "search", launch_arg<cuda::Extreme::Largest>},
    {op_arg_min, "search", launch_arg<cuda::Extreme::Smallest>},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> index_launchers() { return index_table; }

}  // namespace plimsoll
