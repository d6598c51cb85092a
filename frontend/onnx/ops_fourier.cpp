#include "frontend/onnx/import_rows.h"
#include "frontend/onnx/importer.h"

#include <cmath>

// Imports Fourier transforms as products with matrices of cosines and sines. Up to some thousand points a product takes
// no longer than the passes of a fast transform over memory, and parts that are 0, or that nothing reads, cost nothing.

namespace plimsoll {
namespace {

constexpr int64_t max_elements = int64_t{1} << 24;  // of a matrix: 4096 points

// The parts of a complex tensor, without its last dimension. None stands for zeros.
struct Complex {
  ValueId real = ValueId::None, imaginary = ValueId::None;
};

bool is_zero(const Graph& graph, ValueId value) {
  for (;;) {
    const NodeId producer = graph.value(value).producer;
    if (producer == NodeId::None) return false;
    const Node& node = graph.node(producer);
    if (node.op->name == "constant") {
      const TensorRef tensor = node.attrs.get_tensor("value");
      for (int64_t i = 0; i < tensor->type().elements(); ++i)
        if (tensor->get(i) != 0) return false;
      return true;
    }
    if (node.op->name != "expand" && node.op->name != "reshape") return false;
    value = node.operands[0];
  }
}

Complex parts_of(NodeContext& n, ValueId x) {
  const int64_t last = n.rank(x) - 1;
  if (n.dim(x, last) == 1) return {n.select(x, last, 0)};
  const Graph& graph = n.importer().graph();
  const NodeId producer = graph.value(x).producer;
  Complex parts{n.select(x, last, 0), n.select(x, last, 1)};
  if (producer == NodeId::None || graph.node(producer).op->name != "concat") return parts;
  const Node& concat = graph.node(producer);
  if (concat.operands.size() != 2 || concat.attrs.get_int("axis") != last) return parts;
  if (is_zero(graph, concat.operands[0])) parts.real = ValueId::None;
  if (is_zero(graph, concat.operands[1])) parts.imaginary = ValueId::None;
  return parts;
}

// A transform of `points` numbers along an axis. `given` of them are known, the others 0 or, with `from_half`, the
// mirrored ones that make the result real; `asked` results are wanted.
struct Transform {
  int64_t axis, points, given, asked;
  bool inverse, from_half;
};

// [asked, given]: the share that each number has in a result.
Tensor waves(const Transform& t, double (*wave)(double), double sign, DType dtype) {
  constexpr double turn = 2 * 3.14159265358979323846;
  Tensor matrix(Type(dtype, {t.asked, t.given}));
  for (int64_t from = 0; from < t.given; ++from) {
    const bool has_mirror = t.from_half && from > 0 && 2 * from != t.points;
    const double scale = sign * (has_mirror ? 2 : 1) / (t.inverse ? static_cast<double>(t.points) : 1);
    for (int64_t to = 0; to < t.asked; ++to) {
      const double angle = turn * static_cast<double>(from * to % t.points) / static_cast<double>(t.points);
      matrix.view().set(to * t.given + from, scale * wave(angle));
    }
  }
  return matrix;
}

class Transformer {
 public:
  Transformer(NodeContext& n, const Transform& t) : n_(n), t_(t) {}

  // (cosines + i sines) (real + i imaginary), with the sines' sign of the direction.
  Complex run(const Complex& x) {
    const double sign = t_.inverse ? 1 : -1;
    Complex y{sum(product(x.real, std::cos, 1), product(x.imaginary, std::sin, -sign))};
    if (!t_.from_half) y.imaginary = sum(product(x.imaginary, std::cos, 1), product(x.real, std::sin, sign));
    return y;
  }

 private:
  ValueId sum(ValueId a, ValueId b) {
    if (a == ValueId::None || b == ValueId::None) return a == ValueId::None ? b : a;
    return n_.emit("add", {a, b});
  }

  ValueId product(ValueId x, double (*wave)(double), double sign) {
    if (x == ValueId::None) return x;
    x = n_.slice(x, t_.axis, 0, t_.given);
    const ValueId matrix = n_.constant_value(waves(t_, wave, sign, n_.type(x).dtype));
    const int64_t rank = n_.rank(x);
    if (t_.axis == rank - 2) return n_.emit("matmul", {matrix, x}, {{"transpose_a", 0}, {"transpose_b", 0}});
    Ints order;
    for (int64_t d = 0; d < rank; ++d) order.push_back(d);
    std::swap(order[t_.axis], order.back());
    return n_.transpose(n_.emit("linear", {n_.transpose(x, order), matrix}, {{"transpose_w", 1}}), order);
  }

  NodeContext& n_;
  const Transform& t_;
};

void import_dft(NodeContext& n) {
  const ValueId x = n.input(0);
  const int64_t rank = n.rank(x);
  if (rank < 2 || (n.dim(x, rank - 1) != 1 && n.dim(x, rank - 1) != 2))
    n.fail("needs numbers of one or two parts in the last dimension, got " + to_string(n.type(x)));
  const int64_t by_default = n.opset() < 20 ? n.attr_int("axis", 1) : -2;
  const int64_t axis = n.axis(n.opset() >= 20 && n.has(2) ? n.known_int(2, "axis") : by_default, rank);
  if (n.failed()) return;
  const bool inverse = n.attr_int("inverse", 0) != 0, onesided = n.attr_int("onesided", 0) != 0;
  const bool from_half = inverse && onesided;
  const int64_t there = n.dim(x, axis), usual = from_half ? 2 * (there - 1) : there;
  const int64_t points = n.has(1) ? n.known_int(1, "length") : usual;
  if (axis == rank - 1) n.fail("the last dimension has the parts of a number");
  if (onesided && !inverse && n.dim(x, rank - 1) != 1) n.fail("one side of a transform is of real numbers");
  if (points < 1) n.fail("a transform needs points, got " + llvm::Twine(points));
  if (n.failed()) return;
  const int64_t half = points / 2 + 1;
  const Transform transform{
      axis,    points,   std::min(there, from_half ? half : points), onesided && !inverse ? half : points,
      inverse, from_half};
  if (transform.given * transform.asked > max_elements)
    return n.fail("a transform of " + llvm::Twine(points) + " points is a product with more than " +
                  llvm::Twine(max_elements) + " numbers");
  const Complex parts = parts_of(n, x);
  if (parts.real == ValueId::None && parts.imaginary == ValueId::None) return n.fail("transforms zeros");
  const Complex y = Transformer(n, transform).run(parts);
  const ValueId real = n.unsqueeze(y.real, rank - 1);
  n.output(0, from_half ? real : n.concat({real, n.unsqueeze(y.imaginary, rank - 1)}, rank - 1));
}

constexpr ImportRow fourier_table[] = {{"DFT", 17, import_dft}};

}  // namespace

llvm::ArrayRef<ImportRow> fourier_rows() { return fourier_table; }

}  // namespace plimsoll
