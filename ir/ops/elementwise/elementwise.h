#pragma once

// The pattern of elementwise records: a lambda for the meaning, a lambda for the gradient.
//
// A meaning is written for `auto`: it is called with double for floats, int64_t or uint64_t for integers and
// bool, and may take the node's attributes last.

#include "ir/ops/common/expr.h"
#include "ir/ops/common/samples.h"

#include <cmath>
#include <type_traits>

namespace plimsoll {

template <typename T>
T load(const TensorView& view, int64_t i) {
  if constexpr (std::is_floating_point_v<T>) return view.get(i);
  // Masks of millions of elements are folded.
  if (view.type.dtype == DType::Bool) return view.as<uint8_t>()[i] != 0;
  return static_cast<T>(view.get_int(i));
}

template <typename T>
void store(const TensorView& view, int64_t i, T value) {
  if constexpr (std::is_floating_point_v<T>) return view.set(i, value);
  if (view.type.dtype == DType::Bool)
    view.as<uint8_t>()[i] = value != 0;
  else
    view.set_int(i, static_cast<int64_t>(value));
}

// Calls visit with a zero of the type that holds `dtype` exactly.
template <typename Visit>
void with_exact_type(DType dtype, Visit visit) {
  if (is_float(dtype)) return visit(double{});
  if (dtype == DType::U64) return visit(uint64_t{});
  return visit(int64_t{});
}

template <auto f, typename... T>
auto call_meaning(const Attrs& attrs, T... x) {
  if constexpr (std::is_invocable_v<decltype(f), T..., const Attrs&>)
    return f(x..., attrs);
  else
    return f(x...);
}

template <auto f>
void map_unary(const ReferenceCall& call) {
  const TensorView &x = call.in("x"), &y = call.out("y");
  with_exact_type(x.type.dtype, [&](auto zero) {
    for (int64_t i = 0; i < y.elements(); ++i) store(y, i, call_meaning<f>(call.attrs, load<decltype(zero)>(x, i)));
  });
}

template <auto f>
void map_binary(const ReferenceCall& call) {
  const TensorView &a = call.operands[0], &b = call.operands[1], &y = call.results[0];
  const Shape& shape = y.type.shape;
  with_exact_type(a.type.dtype, [&](auto zero) {
    using T = decltype(zero);
    walk<2>(shape, {broadcast_strides(a.type.shape, shape), broadcast_strides(b.type.shape, shape)}, {},
            [&](int64_t i, const auto& at) {
              store(y, i, call_meaning<f>(call.attrs, load<T>(a, at[0]), load<T>(b, at[1])));
            });
  });
}

// The gradient of y = f(x) as a formula of x, y, dy and, if it likes, the attributes.
template <auto f>
void unary_rule(GradContext& g) {
  Expr x = operand(g, "x"), y = result(g), dy = out_grad(g);
  if constexpr (std::is_invocable_v<decltype(f), Expr, Expr, Expr, const Attrs&>)
    g.add("x", f(x, y, dy, g.attrs()));
  else
    g.add("x", f(x, y, dy));
}

template <auto f>
constexpr Gradient unary_gradient = Gradient::rule(unary_rule<f>);

constexpr OpDef unary_op(llvm::StringLiteral name, llvm::StringLiteral summary, InferFn infer, ReferenceFn reference,
                         Gradient gradient, SamplesFn samples, AttrSpecs attrs = {},
                         Precision precision = Precision::Follow) {
  return {.name = name,
          .summary = summary,
          .attrs = attrs,
          .infer = infer,
          .gradient = gradient,
          .precision = precision,
          .elementwise = true,
          .in_place = {{"y", "x"}},
          .reference = reference,
          .samples = samples};
}

constexpr OpDef with_linear(OpDef op, LinearForms linear) {
  op.linear = linear;
  return op;
}

constexpr OpDef with_exact(OpDef op, llvm::StringRef operand) {
  op.exact = operand;
  return op;
}

// The gradients of y = f(a, b), each a formula of a, b, y, dy in the broadcast shape.
template <auto of_a, auto of_b>
void binary_rule(GradContext& g) {
  Expr a = operand(g, 0), b = operand(g, 1), y = result(g), dy = out_grad(g);
  if (g.wants(0)) add_broadcast(g, 0, of_a(a, b, y, dy));
  if (g.wants(1)) add_broadcast(g, 1, of_b(a, b, y, dy));
}

// Samples of one operand in three ranks, one of them long enough for kernels that work by vectors.
template <samples::Fill fill, DType dtype = DType::F32>
std::vector<Sample> unary_samples() {
  auto operand = [](llvm::ArrayRef<int64_t> shape) { return samples::filled(fill, shape, dtype); };
  return {{{operand({37})}, {}}, {{operand({2, 3, 2})}, {}}, {{operand({})}, {}}};
}

// Samples of two operands: equal shapes, and each kind of broadcasting.
template <samples::Fill fill, DType dtype = DType::F32>
std::vector<Sample> binary_samples() {
  auto operand = [](llvm::ArrayRef<int64_t> shape) { return samples::filled(fill, shape, dtype); };
  return {{{operand({2, 3}), operand({2, 3})}, {}},
          {{operand({2, 1, 3}), operand({4, 1})}, {}},
          {{operand({}), operand({5})}, {}},
          {{operand({1}), operand({})}, {}},
          {{operand({2, 16}), operand({16})}, {}}};
}

}  // namespace plimsoll
