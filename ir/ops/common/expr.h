#pragma once

// Arithmetic on graph values, so that a gradient rule reads like its formula: `dy * (1.0 - y * y)`.

#include "ir/ops/common/support.h"

namespace plimsoll {

struct Expr {
  Builder* b;
  ValueId id;

  operator ValueId() const { return id; }
  const Type& type() const { return b->type(id); }
};

inline Expr operand(GradContext& g, PortKey i) { return {&g.b, g[i]}; }
inline Expr result(GradContext& g, PortKey i = size_t{0}) { return {&g.b, g.result(i)}; }
inline Expr out_grad(GradContext& g, PortKey i = size_t{0}) { return {&g.b, g.out_grad(i)}; }

// A scalar of x's dtype.
inline Expr like(Expr x, double value) { return {x.b, x.b->scalar(value, x.type().dtype)}; }

inline Expr apply(llvm::StringRef op, Expr x, Attrs attrs = {}) { return {x.b, x.b->emit(op, {x}, std::move(attrs))}; }
inline Expr apply(llvm::StringRef op, Expr x, Expr y, Attrs attrs = {}) {
  return {x.b, x.b->emit(op, {x, y}, std::move(attrs))};
}
inline Expr where(Expr condition, Expr a, Expr b) { return {a.b, a.b->emit("where", {condition, a, b})}; }
inline Expr where(Expr condition, Expr a, double b) { return where(condition, a, like(a, b)); }

inline Expr operator-(Expr a) { return apply("neg", a); }
inline Expr operator+(Expr a, Expr b) { return apply("add", a, b); }
inline Expr operator-(Expr a, Expr b) { return apply("sub", a, b); }
inline Expr operator*(Expr a, Expr b) { return apply("mul", a, b); }
inline Expr operator/(Expr a, Expr b) { return apply("div", a, b); }
inline Expr operator+(Expr a, double b) { return a + like(a, b); }
inline Expr operator-(Expr a, double b) { return a - like(a, b); }
inline Expr operator*(Expr a, double b) { return a * like(a, b); }
inline Expr operator/(Expr a, double b) { return a / like(a, b); }
inline Expr operator-(double a, Expr b) { return like(b, a) - b; }
inline Expr greater(Expr a, Expr b) { return apply("greater", a, b); }
inline Expr greater(Expr a, double b) { return greater(a, like(a, b)); }
inline Expr less(Expr a, double b) { return apply("less", a, like(a, b)); }
inline Expr equals(Expr a, Expr b) { return apply("equal", a, b); }
inline Expr equals(Expr a, double b) { return equals(a, like(a, b)); }
inline Expr both(Expr a, Expr b) { return apply("and", a, b); }
inline Expr cast(Expr x, DType dtype) { return {x.b, x.b->cast(x, dtype)}; }
inline Expr reshape(Expr x, llvm::ArrayRef<int64_t> shape) { return {x.b, x.b->reshape(x, shape)}; }

}  // namespace plimsoll
