#include "frontend/onnx/import_rows.h"

// Imports reductions. The plain ones are our ops; the others add elementwise functions before and after one.

namespace plimsoll {
namespace {

struct Reduction {
  ValueId x;
  Ints axes;  // empty: nothing is reduced
  bool keep_dims;
};

// Axes are an attribute in older opsets and an input in newer ones. No axes mean all axes, unless the node says
// otherwise.
Reduction read_reduction(NodeContext& n) {
  Reduction r{n.input(0), {}, n.attr_int("keepdims", 1) != 0};
  Ints given = n.has(1) ? n.known_ints(1, "axes") : n.attr_ints("axes");
  const bool keeps_all = n.attr_int("noop_with_empty_axes", 0) != 0;
  r.axes = keeps_all ? n.axes(given, n.rank(r.x)) : n.axes_or_all(given, r.x);
  return r;
}

ValueId finish(NodeContext& n, llvm::StringRef op, ValueId x, const Reduction& r) {
  return n.reduce(op, x, r.axes, r.keep_dims);
}

// Booleans are reduced as small integers.
void import_plain(NodeContext& n) {
  Reduction r = read_reduction(n);
  DType dtype = n.type(r.x).dtype;
  ValueId x = dtype == DType::Bool ? n.cast(r.x, DType::U8) : r.x;
  n.output(0, n.cast(finish(n, n.target(), x, r), dtype));
}

void import_l1(NodeContext& n) {
  Reduction r = read_reduction(n);
  n.output(0, finish(n, "reduce_sum", n.emit("abs", {r.x}), r));
}

ValueId sum_of_squares(NodeContext& n, const Reduction& r) {
  return finish(n, "reduce_sum", n.emit("mul", {r.x, r.x}), r);
}

// Sums and logarithms of integers are computed in double and cast back.
ValueId as_float(NodeContext& n, ValueId x) { return is_float(n.type(x).dtype) ? x : n.cast(x, DType::F64); }

void import_l2(NodeContext& n) {
  Reduction r = read_reduction(n);
  DType dtype = n.type(r.x).dtype;
  n.output(0, n.cast(n.emit("sqrt", {as_float(n, sum_of_squares(n, r))}), dtype));
}

void import_sum_square(NodeContext& n) { n.output(0, sum_of_squares(n, read_reduction(n))); }

void import_log_sum(NodeContext& n) {
  Reduction r = read_reduction(n);
  DType dtype = n.type(r.x).dtype;
  n.output(0, n.cast(n.emit("log", {as_float(n, finish(n, "reduce_sum", r.x, r))}), dtype));
}

// Computes max + log(sum(exp(x - max))), which does not overflow.
void import_log_sum_exp(NodeContext& n) {
  Reduction r = read_reduction(n);
  DType dtype = n.type(r.x).dtype;
  ValueId x = as_float(n, r.x);
  if (r.axes.empty()) return n.output(0, r.x);
  ValueId largest = n.reduce("reduce_max", x, r.axes, true);
  ValueId sum = n.reduce("reduce_sum", n.emit("exp", {n.emit("sub", {x, largest})}), r.axes, r.keep_dims);
  ValueId log = n.emit("log", {sum});
  n.output(0, n.cast(n.emit("add", {log, n.reshape(largest, n.shape(log))}), dtype));
}

constexpr ImportRow reduce_table[] = {
    {"ReduceL1", 1, import_l1},
    {"ReduceL2", 1, import_l2},
    {"ReduceLogSum", 1, import_log_sum},
    {"ReduceLogSumExp", 1, import_log_sum_exp},
    {"ReduceMax", 1, import_plain, "reduce_max"},
    {"ReduceMean", 1, import_plain, "reduce_mean"},
    {"ReduceMin", 1, import_plain, "reduce_min"},
    {"ReduceProd", 1, import_plain, "reduce_prod"},
    {"ReduceSum", 1, import_plain, "reduce_sum"},
    {"ReduceSumSquare", 1, import_sum_square},
};

}  // namespace

llvm::ArrayRef<ImportRow> reduce_rows() { return reduce_table; }

}  // namespace plimsoll
