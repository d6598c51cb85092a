// Ops that choose, bound, convert or repeat what is there: where, clip, cast, identity, detach, copy, add_n.

#include "ir/ops/elementwise/elementwise.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

namespace plimsoll {
namespace {

// ---- where ----

Result<Types> infer_where(const OpCall& call) {
  if (Status s = need_bool(call, "condition")) return s;
  if (Status s = need_same_dtype(call, "a", "b")) return s;
  Result<Shape> shape = broadcast_operands(call);
  if (!shape) return shape.takeError();
  return one_result(call["a"].dtype, *shape);
}

void where_reference(const ReferenceCall& call) {
  const TensorView &condition = call.in("condition"), &a = call.in("a"), &b = call.in("b"), &y = call.out("y");
  auto strides = [&](const TensorView& x) { return broadcast_strides(x.type.shape, y.type.shape); };
  walk<3>(y.type.shape, {strides(condition), strides(a), strides(b)}, {}, [&](int64_t i, const auto& at) {
    if (load<int64_t>(condition, at[0]))
      copy_elements(y, i, a, at[1]);
    else
      copy_elements(y, i, b, at[2]);
  });
}

void where_gradient(GradContext& g) {
  Expr condition = operand(g, "condition"), dy = out_grad(g);
  Expr zero = like(dy, 0);
  if (g.wants("a")) add_broadcast(g, "a", where(condition, dy, zero));
  if (g.wants("b")) add_broadcast(g, "b", where(condition, zero, dy));
}

std::vector<Sample> where_samples() {
  using namespace samples;
  return {{{bools({2, 3}), normal({2, 3}), normal({2, 3})}, {}},
          {{bools({3, 1}), normal({}), normal({2, 1, 4})}, {}},
          {{bools({}), integers({3}, -9, 9), integers({2, 1}, -9, 9)}, {}}};
}

// ---- clip ----

Result<Types> infer_clip(const OpCall& call) {
  if (Status s = need_number(call, "x")) return s;
  return Types{call["x"]};
}

template <typename T>
T clipped(T x, const Attrs& attrs) {
  if (attrs.has("min") && static_cast<double>(x) < attrs.get_float("min")) x = static_cast<T>(attrs.get_float("min"));
  if (attrs.has("max") && static_cast<double>(x) > attrs.get_float("max")) x = static_cast<T>(attrs.get_float("max"));
  return x;
}

// Flows where x lies within the bounds, the bounds included.
Expr clip_gradient(Expr x, Expr, Expr dy, const Attrs& attrs) {
  Expr dx = dy;
  if (attrs.has("min")) dx = where(less(x, attrs.get_float("min")), like(dy, 0), dx);
  if (attrs.has("max")) dx = where(greater(x, attrs.get_float("max")), like(dy, 0), dx);
  return dx;
}

std::vector<Sample> clip_samples() {
  using namespace samples;
  return {{{distinct({3, 4})}, {{"min", -1.0}, {"max", 0.8}}},
          {{distinct({5})}, {{"min", 0.0}}},
          {{distinct({})}, {{"max", 0.0}}},
          {{integers({6}, -9, 9)}, {{"min", -3.0}, {"max", 4.0}}}};
}

// ---- cast ----

Result<Types> infer_cast(const OpCall& call) { return one_result(call.attrs.get_dtype("to"), call["x"].shape); }

// Floats round to nearest even and become integers by truncation; integers wrap.
void cast_reference(const ReferenceCall& call) {
  const TensorView &x = call.in("x"), &y = call.out("y");
  if (is_float(x.type.dtype) || is_float(y.type.dtype))
    for (int64_t i = 0; i < y.elements(); ++i) y.set(i, x.get(i));
  else
    for (int64_t i = 0; i < y.elements(); ++i) y.set_int(i, x.get_int(i));
}

void cast_gradient(GradContext& g) {
  DType from = g.type(g["x"]).dtype;
  if (g.wants("x") && is_float(from) && is_float(g.attrs().get_dtype("to"))) g.add("x", g.b.cast(g.out_grad(), from));
}

std::vector<Sample> cast_samples() {
  using namespace samples;
  return {{{normal({2, 3})}, {{"to", DType::F64}}},
          {{normal({4}, DType::BF16)}, {{"to", DType::F32}}},
          {{fixed(distinct({2, 3}))}, {{"to", DType::I64}}},
          {{integers({5}, -9, 9)}, {{"to", DType::I8}}},
          {{bools({5})}, {{"to", DType::F32}}}};
}

// ---- identity, copy, add_n ----

void copy_reference(const ReferenceCall& call) {
  const TensorView &x = call.in("x"), &y = call.out("y");
  copy_elements(y, 0, x, 0, y.elements());
}

std::vector<Sample> copy_samples() {
  using namespace samples;
  return {{{normal({2, 3})}, {}}, {{integers({}, -9, 9)}, {}}, {{normal({4}, DType::BF16)}, {}}};
}

Result<Types> infer_add_n(const OpCall& call) {
  if (Status s = need_number(call, "first")) return s;
  for (size_t i = 1; i < call.count(); ++i)
    if (Status s = need_type(call, i, call["first"])) return s;
  return infer_same(call);
}

void add_n_reference(const ReferenceCall& call) {
  const TensorView& y = call.out("y");
  with_exact_type(y.type.dtype, [&](auto zero) {
    for (int64_t i = 0; i < y.elements(); ++i) {
      auto sum = zero;
      for (const TensorView& term : call.operands) sum += load<decltype(zero)>(term, i);
      store(y, i, sum);
    }
  });
}

void add_n_gradient(GradContext& g) {
  for (size_t i = 0; i < g.operand_count(); ++i)
    if (g.wants(i)) g.add(i, g.out_grad());
}

double add_n_flops(const OpCall& call, llvm::ArrayRef<Type> results) {
  return static_cast<double>(call.count() - 1) * static_cast<double>(results[0].elements());
}

std::vector<Sample> add_n_samples() {
  using namespace samples;
  return {{{normal({2, 3}), normal({2, 3}), normal({2, 3})}, {}},
          {{normal({4})}, {}},
          {{integers({3}, -9, 9), integers({3}, -9, 9)}, {}}};
}

constexpr auto pass_on = [](Expr, Expr, Expr dy) { return dy; };

}  // namespace

constinit const OpDef op_where{
    .name = "where",
    .summary = "a where the condition holds, else b; broadcasting",
    .operands = {"condition", "a", "b"},
    .infer = infer_where,
    .gradient = Gradient::rule(where_gradient),
    .elementwise = true,
    .in_place = {{"y", "a"}, {"y", "b"}},
    .linear = {"a + b"},
    .reference = where_reference,
    .samples = where_samples,
};

constinit const OpDef op_clip{
    .name = "clip",
    .summary = "x raised to at least {min} and lowered to at most {max}",
    .attrs = {{"min", AttrKind::Float, AttrNeed::Optional}, {"max", AttrKind::Float, AttrNeed::Optional}},
    .infer = infer_clip,
    .gradient = Gradient::rule(unary_rule<clip_gradient>),
    .elementwise = true,
    .in_place = {{"y", "x"}},
    .reference = map_unary<[](auto x, const Attrs& attrs) { return clipped(x, attrs); }>,
    .samples = clip_samples,
};

constinit const OpDef op_cast{
    .name = "cast",
    .summary = "x converted to the dtype {to}",
    .attrs = {{"to", AttrKind::DType}},
    .infer = infer_cast,
    .gradient = Gradient::rule(cast_gradient),
    .moves_elements = true,
    .elementwise = true,
    .in_place = {{"y", "x"}},
    .linear = {"x"},
    .reference = cast_reference,
    .samples = cast_samples,
};

// ---- to_host, to_device ----

Result<Types> infer_to_host(const OpCall& call) {
  if (call.get_int("begin") < 0) return model_error("begin is " + llvm::Twine(call.get_int("begin")));
  return Types{call["x"]};
}

Result<Types> infer_to_device(const OpCall& call) {
  const int64_t begin = call.get_int("begin"), elements = call.get_int("elements");
  const Type& x = call["x"];
  if (elements == 0 && begin == 0) return Types{x};
  if (begin < 0 || elements < 1 || elements > x.elements() - begin)
    return model_error(llvm::Twine(elements) + " elements from " + llvm::Twine(begin) + " on of " + to_string(x));
  return Types{Type(x.dtype, {elements})};
}

void to_device_reference(const ReferenceCall& call) {
  const TensorView& y = call.out("y");
  copy_elements(y, 0, call.in("x"), call.get_int("begin"), y.elements());
}

std::vector<Sample> to_host_samples() {
  std::vector<Sample> samples = copy_samples();
  samples.push_back({{samples::normal({4})}, {{"begin", 8}}});
  return samples;
}

std::vector<Sample> to_device_samples() {
  std::vector<Sample> samples = copy_samples();
  samples.push_back({{samples::normal({3, 4})}, {{"begin", 5}, {"elements", 6}}});
  return samples;
}

constinit const OpDef op_identity{
    .name = "identity",
    .summary = "x under another name",
    .infer = infer_same,
    .gradient = Gradient::rule(unary_rule<pass_on>),
    .view_of = "x",
    .elementwise = true,
    .linear = {"x"},
    .reference = copy_reference,
    .samples = copy_samples,
};

constinit const OpDef op_detach{
    .name = "detach",
    .summary = "x, and no gradient goes through it",
    .infer = infer_same,
    .gradient = Gradient::zero(),
    .view_of = "x",
    .elementwise = true,
    .linear = {"x"},
    .reference = copy_reference,
    .samples = copy_samples,
};

constinit const OpDef op_copy{
    .name = "copy",
    .summary = "x in bytes of its own",
    .infer = infer_same,
    .gradient = Gradient::rule(unary_rule<pass_on>),
    .moves_elements = true,
    .elementwise = true,
    .linear = {"x"},
    .reference = copy_reference,
    .samples = copy_samples,
};

constinit const OpDef op_to_host{
    .name = "to_host",
    .summary =
        "x copied to host memory {begin=0}: of a piece of a state's next value, the state's element it begins at",
    .attrs = {{"begin", 0}},
    .infer = infer_to_host,
    .gradient = Gradient::missing("copies between memories are made after gradients are"),
    .repeatable = false,
    .moves_elements = true,
    .engine = Engine::ToHost,
    .linear = {"x"},
    .reference = copy_reference,
    .samples = to_host_samples,
};

constinit const OpDef op_to_device{
    .name = "to_device",
    .summary = "x copied from host memory {begin=0, elements=0}: so many elements from begin on, flat; 0: all of x",
    .attrs = {{"begin", 0}, {"elements", 0}},
    .infer = infer_to_device,
    .gradient = Gradient::missing("copies between memories are made after gradients are"),
    .moves_elements = true,
    .engine = Engine::ToDevice,
    .linear = {"x"},
    .reference = to_device_reference,
    .samples = to_device_samples,
};

constinit const OpDef op_add_n{
    .name = "add_n",
    .summary = "the sum of any number of tensors of one type",
    .operands = {"first", "second?", "others*"},
    .infer = infer_add_n,
    .gradient = Gradient::rule(add_n_gradient),
    .elementwise = true,
    .in_place = {{"y", "first"}, {"y", "second"}},
    .flops = add_n_flops,
    .linear = {"first + second + others"},
    .reference = add_n_reference,
    .samples = add_n_samples,
};

}  // namespace plimsoll
