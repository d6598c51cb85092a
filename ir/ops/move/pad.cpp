// Padding and cropping. Along each axis a list says which element of x each result element repeats, none for
// the constant; pad reads by these lists and pad_grad adds by them.

#include "ir/ops/common/expr.h"
#include "ir/ops/common/samples.h"

#include <algorithm>

namespace plimsoll {
namespace {

using namespace samples;

llvm::StringRef mode_of(const Attrs& attrs) { return attrs.get_string("mode", "constant"); }

Status check_pad(const Attrs& attrs, const Type& type, llvm::ArrayRef<llvm::StringLiteral> modes) {
  if (Status s = need_choice(attrs, "mode", modes)) return s;
  for (llvm::StringLiteral name : {llvm::StringLiteral("before"), llvm::StringLiteral("after")}) {
    if (Status s = need_length(attrs, name, type.rank())) return s;
    for (int64_t amount : attrs.get_ints(name))
      if (amount < 0 && mode_of(attrs) != "constant")
        return model_error(name + " is " + llvm::Twine(amount) + ", mode '" + mode_of(attrs) + "' cannot crop");
  }
  return Status::success();
}

// `shape` with the padding added (direction 1) or taken away (-1).
Result<Shape> padded_shape(const Attrs& attrs, llvm::ArrayRef<int64_t> shape, int64_t direction) {
  Shape out;
  for (size_t d = 0; d < shape.size(); ++d) {
    out.push_back(shape[d] + direction * (attrs.get_ints("before")[d] + attrs.get_ints("after")[d]));
    if (out.back() < 0 || (mode_of(attrs) != "constant" && std::min(out.back(), shape[d]) == 0))
      return model_error("dimension " + llvm::Twine(d) + " of " + to_string(shape) + " becomes " +
                         llvm::Twine(out.back()) + " with mode '" + mode_of(attrs) + "'");
  }
  return out;
}

Result<Types> infer_pad(const OpCall& call) {
  const Type& x = call["x"];
  if (Status s = check_pad(call.attrs, x, {"constant", "reflect", "edge", "wrap"})) return s;
  if (Status s = need_type(call, "value", Type(x.dtype, {}))) return s;
  Result<Shape> shape = padded_shape(call.attrs, x.shape, 1);
  if (!shape) return shape.takeError();
  return one_result(x.dtype, *shape);
}

Result<Types> infer_pad_grad(const OpCall& call) {
  const Type& dy = call["dy"];
  if (Status s = need_float(call, "dy")) return s;
  if (Status s = check_pad(call.attrs, dy, {"reflect", "edge", "wrap"})) return s;
  Result<Shape> shape = padded_shape(call.attrs, dy.shape, -1);
  if (!shape) return shape.takeError();
  return one_result(dy.dtype, *shape);
}

int64_t modulo(int64_t a, int64_t n) { return (a % n + n) % n; }

// The source of the element at `i`, which may lie outside [0, length); -1 for the constant.
int64_t source_index(int64_t i, int64_t length, llvm::StringRef mode) {
  if (i >= 0 && i < length) return i;
  if (mode == "edge") return i < 0 ? 0 : length - 1;
  if (mode == "wrap") return modulo(i, length);
  if (mode == "reflect" && length == 1) return 0;
  if (mode == "reflect") return length - 1 - std::abs(length - 1 - modulo(i, 2 * (length - 1)));
  return -1;
}

// visit(i, at): element i of the padded shape repeats element `at` of the inner one; -1 for the constant.
template <typename Visit>
void for_each_source(const Attrs& attrs, llvm::ArrayRef<int64_t> padded, llvm::ArrayRef<int64_t> inner, Visit visit) {
  Shape strides = row_major_strides(inner);
  std::vector<std::vector<int64_t>> offsets(padded.size());
  for (size_t d = 0; d < padded.size(); ++d)
    for (int64_t i = 0; i < padded[d]; ++i) {
      int64_t source = source_index(i - attrs.get_ints("before")[d], inner[d], mode_of(attrs));
      offsets[d].push_back(source < 0 ? -1 : source * strides[d]);
    }
  Shape padded_strides = row_major_strides(padded);
  for (int64_t i = 0; i < element_count(padded); ++i) {
    int64_t at = 0;
    for (size_t d = 0; d < padded.size() && at >= 0; ++d) {
      int64_t offset = offsets[d][static_cast<size_t>(i / padded_strides[d] % padded[d])];
      at = offset < 0 ? -1 : at + offset;
    }
    visit(i, at);
  }
}

void pad_reference(const ReferenceCall& call) {
  const TensorView &x = call.in("x"), &y = call.out("y");
  Tensor zero(Type(y.type.dtype, {}));
  TensorView value = call.has("value") ? call.in("value") : zero.view();
  for_each_source(call.attrs, y.type.shape, x.type.shape, [&](int64_t i, int64_t at) {
    if (at < 0)
      copy_elements(y, i, value, 0);
    else
      copy_elements(y, i, x, at);
  });
}

void pad_grad_reference(const ReferenceCall& call) {
  const TensorView &dy = call.in("dy"), &dx = call.out("dx");
  std::vector<double> sums(static_cast<size_t>(dx.elements()), 0.0);
  for_each_source(call.attrs, dy.type.shape, dx.type.shape,
                  [&](int64_t i, int64_t at) { sums[static_cast<size_t>(at)] += dy.get(i); });
  for (int64_t i = 0; i < dx.elements(); ++i) dx.set(i, sums[static_cast<size_t>(i)]);
}

Ints negated(llvm::ArrayRef<int64_t> list) {
  Ints out;
  for (int64_t value : list) out.push_back(-value);
  return out;
}

// Padding with a constant is undone by padding with the negated amounts; the constant gets what is left of
// dy.
void constant_pad_gradient(GradContext& g) {
  Attrs inverse{{"before", negated(g.attrs().get_ints("before"))}, {"after", negated(g.attrs().get_ints("after"))}};
  Expr dy = out_grad(g), dx = apply("pad", dy, inverse);
  if (g.wants("x")) g.add("x", dx);
  if (!g.wants("value")) return;
  Ints all;
  for (int64_t d = 0; d < dy.type().rank(); ++d) all.push_back(d);
  g.add("value", Expr{&g.b, g.b.sum(dy, all, false)} - Expr{&g.b, g.b.sum(dx, all, false)});
}

void pad_gradient(GradContext& g) {
  if (mode_of(g.attrs()) == "constant") return constant_pad_gradient(g);
  if (g.wants("x")) g.add("x", apply("pad_grad", out_grad(g), g.attrs()));
  if (g.wants("value")) g.add("value", g.b.scalar(0, g.type(g["value"]).dtype));
}

void pad_grad_gradient(GradContext& g) { g.add("dy", apply("pad", out_grad(g), g.attrs())); }

Attrs padding(Ints before, Ints after, llvm::StringRef mode) {
  return {{"before", std::move(before)}, {"after", std::move(after)}, {"mode", mode.str()}};
}

std::optional<ChunkCall> pad_chunk(const OpCall& call, Chunk chunk) {
  llvm::ArrayRef<int64_t> before = call.get_ints("before"), after = call.get_ints("after");
  return before.empty() || before[0] != 0 || after[0] != 0 ? std::nullopt : chunk_of_first(call, chunk);
}

std::vector<Sample> pad_samples() {
  return {{{normal({2, 3})}, {{"before", Ints{1, 0}}, {"after", Ints{2, 1}}}},
          {{normal({4, 3}), normal({})}, padding({-1, 2}, {1, -2}, "constant")},
          {{normal({2, 4})}, padding({1, 3}, {0, 2}, "reflect")},
          {{normal({3, 2})}, padding({2, 0}, {1, 3}, "edge")},
          {{normal({4, 2, 4})}, padding({0, 1, 3}, {0, 0, 2}, "reflect")},
          {{integers({3, 2}, -9, 9)}, padding({2, 1}, {4, 0}, "wrap")}};
}

std::vector<Sample> pad_grad_samples() {
  return {{{normal({3, 9})}, padding({1, 3}, {0, 2}, "reflect")},
          {{normal({6, 5})}, padding({2, 0}, {1, 3}, "edge")},
          {{normal({4, 8})}, padding({0, 1}, {0, 2}, "reflect")},
          {{normal({7})}, padding({2}, {3}, "wrap")}};
}

double one_add_each(const OpCall& call, llvm::ArrayRef<Type>) {
  return static_cast<double>(call.operand(0).elements());
}

}  // namespace

constinit const OpDef op_pad{
    .name = "pad",
    .summary =
        "x with {before} and {after} elements more along each axis {mode=constant|reflect|edge|wrap}; "
        "constant "
        "pads with value, else 0, and crops by negative amounts",
    .operands = {"x", "value?"},
    .attrs = {{"before", AttrKind::Ints}, {"after", AttrKind::Ints}, {"mode", "constant"}},
    .infer = infer_pad,
    .gradient = Gradient::rule(pad_gradient),
    .moves_elements = true,
    .dim_order = DimOrder::Lists,
    .flops = no_flops,
    .chunk = pad_chunk,
    .linear = {"x + value"},
    .reference = pad_reference,
    .samples = pad_samples,
};

constinit const OpDef op_pad_grad{
    .name = "pad_grad",
    .summary = "every element of dy added where pad {before} {after} {mode=reflect|edge|wrap} read it",
    .operands = {"dy"},
    .results = {"dx"},
    .attrs = {{"before", AttrKind::Ints}, {"after", AttrKind::Ints}, {"mode", "constant"}},
    .infer = infer_pad_grad,
    .gradient = Gradient::rule(pad_grad_gradient),
    .flops = one_add_each,
    .chunk = pad_chunk,
    .linear = {"sum(dy)"},
    .reference = pad_grad_reference,
    .samples = pad_grad_samples,
};

}  // namespace plimsoll
