// Ops that treat elements by their position along one or two axes: cumsum, triangular, reverse_sequence.

#include "ir/ops/elementwise/elementwise.h"

namespace plimsoll {
namespace {

using namespace samples;

// ---- cumsum ----

Result<Types> infer_cumsum(const OpCall& call) {
  if (Status s = need_number(call, "x")) return s;
  if (Status s = need_axis(call.attrs, "axis", call["x"].rank())) return s;
  return infer_same(call);
}

void cumsum_reference(const ReferenceCall& call) {
  const TensorView &x = call.in("x"), &y = call.out("y");
  AxisView view = along_axis(x.type.shape, call.get_int("axis"));
  bool exclusive = call.get_int("exclusive") != 0, reverse = call.get_int("reverse") != 0;
  with_exact_type(x.type.dtype, [&](auto zero) {
    for (int64_t o = 0; o < view.outer; ++o)
      for (int64_t i = 0; i < view.inner; ++i) {
        auto before = zero;
        for (int64_t k = 0; k < view.length; ++k) {
          int64_t at = view.at(o, reverse ? view.length - 1 - k : k, i);
          auto after = before + load<decltype(zero)>(x, at);
          store(y, at, exclusive ? before : after);
          before = after;
        }
      }
  });
}

// Element k adds to all after it, so its gradient is summed from the other end.
void cumsum_gradient(GradContext& g) {
  Attrs attrs = g.attrs();
  attrs.set("reverse", int64_t{attrs.get_int("reverse") == 0});
  g.add("x", apply("cumsum", out_grad(g), attrs));
}

std::vector<Sample> cumsum_samples() {
  Attrs last{{"axis", 1}}, exclusive{{"axis", 0}, {"exclusive", 1}};
  Attrs reverse{{"axis", 1}, {"exclusive", 1}, {"reverse", 1}};
  return {{{normal({2, 4})}, last},
          {{normal({3, 2})}, exclusive},
          {{normal({2, 3, 2})}, reverse},
          {{integers({2, 3}, -9, 9)}, last}};
}

// ---- triangular ----

Result<Types> infer_triangular(const OpCall& call) {
  const Type& x = call["x"];
  if (x.rank() < 2) return model_error("operand 0 is " + to_string(x) + ", it must have at least 2 dimensions");
  return Types{x};
}

void triangular_reference(const ReferenceCall& call) {
  const TensorView &x = call.in("x"), &y = call.out("y");
  int64_t k = call.get_int("k");
  bool upper = call.get_int("upper") != 0;
  llvm::ArrayRef<int64_t> shape = x.type.shape;
  int64_t columns = shape.back(), rows = shape.drop_back().back();
  fill_zero(y);
  for (int64_t i = 0; i < x.elements(); ++i) {
    int64_t diagonal = i % columns - i / columns % rows;
    if (upper ? diagonal >= k : diagonal <= k) copy_elements(y, i, x, i);
  }
}

void triangular_gradient(GradContext& g) { g.add("x", apply("triangular", out_grad(g), g.attrs())); }

std::vector<Sample> triangular_samples() {
  return {{{normal({3, 4})}, {{"upper", 0}}},
          {{normal({2, 3, 3})}, {{"upper", 1}, {"k", 1}}},
          {{bools({4, 2})}, {{"upper", 1}, {"k", -1}}}};
}

// ---- reverse_sequence ----

Result<Types> infer_reverse_sequence(const OpCall& call) {
  const Type& x = call["x"];
  for (llvm::StringLiteral name : {llvm::StringLiteral("batch_axis"), llvm::StringLiteral("time_axis")})
    if (Status s = need_axis(call.attrs, name, x.rank())) return s;
  int64_t batch_axis = call.get_int("batch_axis");
  if (batch_axis == call.get_int("time_axis"))
    return model_error("batch_axis and time_axis are both " + llvm::Twine(batch_axis));
  if (Status s = need_index(call, "lens")) return s;
  if (Status s = need_type(call, "lens", Type(call["lens"].dtype, {x.shape[batch_axis]}))) return s;
  return Types{x};
}

Status reverse_sequence_reference(const ReferenceCall& call) {
  const TensorView &x = call.in("x"), &lens = call.in("lens"), &y = call.out("y");
  auto batch_axis = static_cast<size_t>(call.get_int("batch_axis"));
  auto time_axis = static_cast<size_t>(call.get_int("time_axis"));
  const Shape &shape = x.type.shape, strides = row_major_strides(shape);
  for (int64_t b = 0; b < lens.elements(); ++b)
    if (int64_t length = lens.get_int(b); length < 0 || length > shape[time_axis])
      return model_error("sequence " + llvm::Twine(b) + " has length " + llvm::Twine(length) + " of " +
                         llvm::Twine(shape[time_axis]));
  for (int64_t i = 0; i < x.elements(); ++i) {
    int64_t length = lens.get_int(i / strides[batch_axis] % shape[batch_axis]);
    int64_t time = i / strides[time_axis] % shape[time_axis];
    int64_t mirrored = time < length ? length - 1 - time : time;
    copy_elements(y, i, x, i + (mirrored - time) * strides[time_axis]);
  }
  return Status::success();
}

// Its own inverse.
void reverse_sequence_gradient(GradContext& g) {
  g.add("x", apply("reverse_sequence", out_grad(g), operand(g, "lens"), g.attrs()));
}

std::vector<Sample> reverse_sequence_samples() {
  Attrs time_first{{"batch_axis", 1}, {"time_axis", 0}};
  Attrs batch_first{{"batch_axis", 0}, {"time_axis", 1}};
  return {{{normal({4, 2, 2}), values({2}, {3, 0}, DType::I64)}, time_first},
          {{normal({3, 4}), values({3}, {4, 1, 2}, DType::I32)}, batch_first}};
}

constexpr OpDef move_op(llvm::StringLiteral name, llvm::StringLiteral summary, Ports operands, AttrSpecs attrs,
                        InferFn infer, GradientFn gradient, ReferenceFn reference, SamplesFn samples) {
  return {.name = name,
          .summary = summary,
          .operands = operands,
          .attrs = attrs,
          .infer = infer,
          .gradient = Gradient::rule(gradient),
          .flops = no_flops,
          .linear = {"x"},
          .reference = reference,
          .samples = samples};
}

}  // namespace

constinit const OpDef op_cumsum{
    .name = "cumsum",
    .summary =
        "running sums along {axis}; {exclusive=1} leaves the element itself out, {reverse=1} starts at the "
        "end",
    .attrs = {{"axis", AttrKind::Int}, {"exclusive", 0}, {"reverse", 0}},
    .infer = infer_cumsum,
    .gradient = Gradient::rule(cumsum_gradient),
    .precision = Precision::Full,
    .linear = {"sum(x)"},
    .reference = cumsum_reference,
    .samples = cumsum_samples,
};

constinit const OpDef op_triangular =
    move_op("triangular", "x where column - row >= {k} for {upper=1}, <= k for upper=0, in the last two axes; else 0",
            {"x"}, {{"upper", AttrKind::Int}, {"k", 0}}, infer_triangular, triangular_gradient, triangular_reference,
            triangular_samples);

constinit const OpDef op_reverse_sequence =
    move_op("reverse_sequence", "the first lens[b] elements along {time_axis} in reverse, for each b of {batch_axis}",
            {"x", "lens"}, {{"batch_axis", AttrKind::Int}, {"time_axis", AttrKind::Int}}, infer_reverse_sequence,
            reverse_sequence_gradient, reverse_sequence_reference, reverse_sequence_samples);

}  // namespace plimsoll
