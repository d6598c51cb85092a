#include "frontend/onnx/import_rows.h"

// Imports matmuls. A matmul with a plain matrix becomes `linear`, whose weight gradient is one matmul over all rows.
// All others become a batched `matmul`.

namespace plimsoll {
namespace {

ValueId matmul(NodeContext& n, ValueId a, ValueId b) {
  bool linear = n.rank(b) == 2 && is_float(n.type(b).dtype);
  return linear ? n.emit("linear", {a, b}, {{"transpose_w", 0}})
                : n.emit("matmul", {a, b}, {{"transpose_a", 0}, {"transpose_b", 0}});
}

// A vector is a row on the left and a column on the right; its dimension of 1 is dropped from the result.
ValueId numpy_matmul(NodeContext& n, ValueId a, ValueId b) {
  if (n.rank(a) < 1 || n.rank(b) < 1) n.fail("needs vectors or matrices, got a scalar");
  if (n.failed()) return ValueId::None;
  bool row = n.rank(a) == 1, column = n.rank(b) == 1;
  if (row) a = n.reshape(a, {1, n.dim(a, 0)});
  if (column) b = n.reshape(b, {n.dim(b, 0), 1});
  ValueId y = matmul(n, a, b);
  Shape shape = n.shape(y);
  if (n.failed()) return y;
  if (column) shape.pop_back();
  if (row) shape.erase(shape.end() - (column ? 1 : 2));
  return n.reshape(y, shape);
}

void import_matmul(NodeContext& n) {
  ValueId a = n.input(0), b = n.input(1);
  n.output(0, numpy_matmul(n, a, b));
}

ValueId scaled(NodeContext& n, ValueId x, double factor) {
  return factor == 1 ? x : n.emit("mul", {x, n.scalar(factor, n.type(x).dtype)});
}

// alpha * A' * B' + beta * C
void import_gemm(NodeContext& n) {
  ValueId a = n.input(0), b = n.input(1), c = n.optional_input(2);
  if (n.rank(a) != 2 || n.rank(b) != 2)
    return n.fail("needs two matrices, got " + to_string(n.type(a)) + " and " + to_string(n.type(b)));
  double alpha = n.attr_float("alpha", 1), beta = n.attr_float("beta", 1);
  if (n.attr_int("transA", 0)) a = n.transpose(a, {1, 0});
  Attrs attrs{{"transpose_w", n.attr_int("transB", 0)}};
  int64_t columns = n.dim(b, n.attr_int("transB", 0) ? 0 : 1);
  bool bias = c != ValueId::None && alpha == 1 && n.type(c).elements() == columns && n.dim(c, n.rank(c) - 1) == columns;
  if (bias) return n.output(0, n.emit("linear", {a, b, n.reshape(scaled(n, c, beta), {columns})}, attrs));
  ValueId y = scaled(n, n.emit("linear", {a, b}, attrs), alpha);
  if (c != ValueId::None && beta != 0) y = n.emit("add", {y, scaled(n, c, beta)});
  n.output(0, y);
}

constexpr ImportRow matmul_table[] = {
    {"Einsum", 12, import_einsum},
    {"Gemm", 7, import_gemm},
    {"MatMul", 1, import_matmul},
};

}  // namespace

llvm::ArrayRef<ImportRow> matmul_rows() { return matmul_table; }

}  // namespace plimsoll
