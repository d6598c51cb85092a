// Ops that choose, bound, convert or repeat what is there: where, clip, cast, identity, copy, add_n.

#include "ir/ops/elementwise/elementwise.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

namespace plimsoll {
namespace {

// ---- where ----

Result<Types> infer_where(const OpCall& call) {
  if (Status s = check_attrs(call.attrs, {})) return s;
  if (Status s = need_bool(call, 0)) return s;
  if (Status s = need_same_dtype(call, 1, 2)) return s;
  Result<Shape> shape = broadcast_operands(call);
  if (!shape) return shape.takeError();
  return one_result(call.operand(1).dtype, *shape);
}

Status where_reference(const OpCall&, llvm::ArrayRef<TensorView> x, llvm::ArrayRef<TensorView> y) {
  const Shape& shape = y[0].type.shape;
  auto strides = [&](size_t i) { return broadcast_strides(x[i].type.shape, shape); };
  walk<3>(shape, {strides(0), strides(1), strides(2)}, {}, [&](int64_t i, const auto& at) {
    size_t chosen = x[0].get_int(at[0]) ? 1 : 2;
    copy_elements(y[0], i, x[chosen], at[chosen]);
  });
  return Status::success();
}

Status where_gradient(GradContext& g) {
  Expr condition = operand(g, 0), dy = out_grad(g);
  Expr zero = like(dy, 0);
  if (g.wants(1)) add_broadcast(g, 1, where(condition, dy, zero));
  if (g.wants(2)) add_broadcast(g, 2, where(condition, zero, dy));
  return Status::success();
}

std::vector<Sample> where_samples() {
  using namespace samples;
  return {{{bools({2, 3}), normal({2, 3}), normal({2, 3})}, {}},
          {{bools({3, 1}), normal({}), normal({2, 1, 4})}, {}},
          {{bools({}), integers({3}, -9, 9), integers({2, 1}, -9, 9)}, {}}};
}

constexpr InPlace over_choices[] = {{0, 1}, {0, 2}};

// ---- clip ----

Result<Types> infer_clip(const OpCall& call) {
  if (Status s = check_attrs(
          call.attrs, {{"min", AttrKind::Float, AttrNeed::Optional}, {"max", AttrKind::Float, AttrNeed::Optional}}))
    return s;
  if (call.operand(0).dtype == DType::Bool) return model_error("operand 0 is bool, it must be a number");
  return Types{call.operand(0)};
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

Result<Types> infer_cast(const OpCall& call) {
  if (Status s = check_attrs(call.attrs, {{"to", AttrKind::DType}})) return s;
  return one_result(call.attrs.get_dtype("to"), call.operand(0).shape);
}

// Floats round to nearest even and become integers by truncation; integers wrap.
Status cast_reference(const OpCall&, llvm::ArrayRef<TensorView> x, llvm::ArrayRef<TensorView> y) {
  if (is_float(x[0].type.dtype) || is_float(y[0].type.dtype))
    for (int64_t i = 0; i < y[0].elements(); ++i) y[0].set(i, x[0].get(i));
  else
    for (int64_t i = 0; i < y[0].elements(); ++i) y[0].set_int(i, x[0].get_int(i));
  return Status::success();
}

Status cast_gradient(GradContext& g) {
  DType from = g.type(g.operand(0)).dtype;
  if (g.wants(0) && is_float(from) && is_float(g.attrs().get_dtype("to"))) g.add(0, g.b.cast(g.out_grad(), from));
  return Status::success();
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

Status copy_reference(const OpCall&, llvm::ArrayRef<TensorView> x, llvm::ArrayRef<TensorView> y) {
  copy_elements(y[0], 0, x[0], 0, y[0].elements());
  return Status::success();
}

std::vector<Sample> copy_samples() {
  using namespace samples;
  return {{{normal({2, 3})}, {}}, {{integers({}, -9, 9)}, {}}, {{normal({4}, DType::BF16)}, {}}};
}

Result<Types> infer_add_n(const OpCall& call) {
  if (call.operand(0).dtype == DType::Bool) return model_error("operand 0 is bool, it must be a number");
  for (size_t i = 1; i < call.count(); ++i)
    if (Status s = need_type(call, i, call.operand(0))) return s;
  return infer_same(call);
}

Status add_n_reference(const OpCall&, llvm::ArrayRef<TensorView> x, llvm::ArrayRef<TensorView> y) {
  with_exact_type(y[0].type.dtype, [&](auto zero) {
    for (int64_t i = 0; i < y[0].elements(); ++i) {
      auto sum = zero;
      for (const TensorView& term : x) sum += load<decltype(zero)>(term, i);
      store(y[0], i, sum);
    }
  });
  return Status::success();
}

Status add_n_gradient(GradContext& g) {
  for (size_t i = 0; i < g.operand_count(); ++i)
    if (g.wants(i)) g.add(i, g.out_grad());
  return Status::success();
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
    .min_operands = 3,
    .max_operands = 3,
    .infer = infer_where,
    .gradient = Gradient::rule(where_gradient),
    .precision = Precision::Follow,
    .recompute = Recompute::Cheap,
    .elementwise = true,
    .in_place = over_choices,
    .reference = where_reference,
    .samples = where_samples,
};

constinit const OpDef op_clip{
    .name = "clip",
    .summary = "x raised to at least {min} and lowered to at most {max}",
    .min_operands = 1,
    .max_operands = 1,
    .infer = infer_clip,
    .gradient = Gradient::rule(unary_rule<clip_gradient>),
    .precision = Precision::Follow,
    .recompute = Recompute::Cheap,
    .elementwise = true,
    .in_place = over_first,
    .reference = map_unary<[](auto x, const Attrs& attrs) { return clipped(x, attrs); }>,
    .samples = clip_samples,
};

constinit const OpDef op_cast{
    .name = "cast",
    .summary = "x converted to the dtype {to}",
    .min_operands = 1,
    .max_operands = 1,
    .infer = infer_cast,
    .gradient = Gradient::rule(cast_gradient),
    .precision = Precision::Follow,
    .recompute = Recompute::Cheap,
    .elementwise = true,
    .in_place = over_first,
    .reference = cast_reference,
    .samples = cast_samples,
};

constinit const OpDef op_identity{
    .name = "identity",
    .summary = "x under another name",
    .min_operands = 1,
    .max_operands = 1,
    .infer = infer_same,
    .gradient = Gradient::rule(unary_rule<pass_on>),
    .precision = Precision::Follow,
    .recompute = Recompute::Cheap,
    .view_of = 0,
    .elementwise = true,
    .reference = copy_reference,
    .samples = copy_samples,
};

constinit const OpDef op_copy{
    .name = "copy",
    .summary = "x in bytes of its own",
    .min_operands = 1,
    .max_operands = 1,
    .infer = infer_same,
    .gradient = Gradient::rule(unary_rule<pass_on>),
    .precision = Precision::Follow,
    .recompute = Recompute::Cheap,
    .elementwise = true,
    .reference = copy_reference,
    .samples = copy_samples,
};

constinit const OpDef op_to_host{
    .name = "to_host",
    .summary = "x copied to host memory",
    .min_operands = 1,
    .max_operands = 1,
    .infer = infer_same,
    .gradient = Gradient::missing("copies between memories are made after gradients are"),
    .precision = Precision::Follow,
    .recompute = Recompute::Never,
    .engine = Engine::ToHost,
    .reference = copy_reference,
    .samples = copy_samples,
};

constinit const OpDef op_to_device{
    .name = "to_device",
    .summary = "x copied from host memory",
    .min_operands = 1,
    .max_operands = 1,
    .infer = infer_same,
    .gradient = Gradient::missing("copies between memories are made after gradients are"),
    .precision = Precision::Follow,
    .recompute = Recompute::Cheap,
    .engine = Engine::ToDevice,
    .reference = copy_reference,
    .samples = copy_samples,
};

constinit const OpDef op_add_n{
    .name = "add_n",
    .summary = "the sum of any number of tensors of one type",
    .min_operands = 1,
    .max_operands = -1,
    .infer = infer_add_n,
    .gradient = Gradient::rule(add_n_gradient),
    .precision = Precision::Follow,
    .recompute = Recompute::Cheap,
    .elementwise = true,
    .in_place = over_either,
    .flops = add_n_flops,
    .reference = add_n_reference,
    .samples = add_n_samples,
};

}  // namespace plimsoll
