// Binary arithmetic with numpy broadcasting, and the two ops that bound or choose: clip and where.

#include "ir/ops/elementwise/elementwise.h"

namespace plimsoll {
namespace {

using samples::Fill;

Result<Types> infer_arithmetic(const OpCall& call) {
  if (Status s = need_number(call, "a")) return s;
  if (Status s = need_same_dtype(call, "a", "b")) return s;
  Result<Shape> shape = broadcast_operands(call);
  if (!shape) return shape.takeError();
  return one_result(call["a"].dtype, *shape);
}

constexpr OpDef binary(llvm::StringLiteral name, llvm::StringLiteral summary, ReferenceFn reference, Gradient gradient,
                       SamplesFn samples) {
  return {.name = name,
          .summary = summary,
          .operands = {"a", "b"},
          .infer = infer_arithmetic,
          .gradient = gradient,
          .elementwise = true,
          .in_place = {{"y", "a"}, {"y", "b"}},
          .reference = reference,
          .samples = samples};
}

template <auto of_a, auto of_b>
constexpr Gradient rule = Gradient::rule(binary_rule<of_a, of_b>);

// Integers wrap, so their arithmetic is done without sign.
double wrapping(double x) { return x; }
uint64_t wrapping(int64_t x) { return static_cast<uint64_t>(x); }
uint64_t wrapping(uint64_t x) { return x; }

// Integers truncate; x / 0 is 0, and the smallest integer / -1 wraps.
template <typename T>
T divide(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return a / b;
  if (b == 0) return 0;
  if (std::is_signed_v<T> && b == static_cast<T>(-1)) return static_cast<T>(0 - wrapping(a));
  return a / b;
}

// NaN if either is.
template <typename T>
T larger(T a, T b) {
  return a != a || a > b ? a : b;
}
template <typename T>
T smaller(T a, T b) {
  return a != a || a < b ? a : b;
}

// The gradient of the side that wins. Where both are equal each gets half, as if the maximum were
// (a + b + |a - b|) / 2.
Expr share(Expr wins, Expr ties, Expr dy) { return where(ties, dy * 0.5, where(wins, dy, 0.0)); }

template <Fill fill>
std::vector<Sample> number_samples() {
  std::vector<Sample> list = binary_samples<fill>();
  list.push_back({{samples::integers({2, 3}, 1, 9), samples::integers({3}, 1, 4)}, {}});
  list.push_back({{samples::integers({4}, 0, 200, DType::U8), samples::integers({}, 1, 200, DType::U8)}, {}});
  return list;
}

}  // namespace

constinit const OpDef op_add =
    with_linear(binary("add", "a + b", map_binary<[](auto a, auto b) { return wrapping(a) + wrapping(b); }>,
                       rule<[](Expr, Expr, Expr, Expr dy) { return dy; }, [](Expr, Expr, Expr, Expr dy) { return dy; }>,
                       number_samples<Fill::Normal>),
                {"a + b"});

constinit const OpDef op_sub = with_linear(
    binary("sub", "a - b", map_binary<[](auto a, auto b) { return wrapping(a) - wrapping(b); }>,
           rule<[](Expr, Expr, Expr, Expr dy) { return dy; }, [](Expr, Expr, Expr, Expr dy) { return -dy; }>,
           number_samples<Fill::Normal>),
    {"a + b"});

constinit const OpDef op_mul = with_linear(
    binary("mul", "a * b", map_binary<[](auto a, auto b) { return wrapping(a) * wrapping(b); }>,
           rule<[](Expr, Expr b, Expr, Expr dy) { return dy * b; }, [](Expr a, Expr, Expr, Expr dy) { return dy * a; }>,
           number_samples<Fill::Normal>),
    {"a * b"});

constinit const OpDef op_div =
    with_linear(binary("div", "a / b; integers truncate", map_binary<[](auto a, auto b) { return divide(a, b); }>,
                       rule<[](Expr, Expr b, Expr, Expr dy) { return dy / b; },
                            [](Expr, Expr b, Expr y, Expr dy) { return -(dy * y / b); }>,
                       number_samples<Fill::Positive>),
                {"a"});

constinit const OpDef op_max =
    binary("max", "the larger of a and b; NaN if either is", map_binary<[](auto a, auto b) { return larger(a, b); }>,
           rule<[](Expr a, Expr b, Expr, Expr dy) { return share(greater(a, b), equals(a, b), dy); },
                [](Expr a, Expr b, Expr, Expr dy) { return share(greater(b, a), equals(a, b), dy); }>,
           number_samples<Fill::Distinct>);

constinit const OpDef op_min =
    binary("min", "the smaller of a and b; NaN if either is", map_binary<[](auto a, auto b) { return smaller(a, b); }>,
           rule<[](Expr a, Expr b, Expr, Expr dy) { return share(greater(b, a), equals(a, b), dy); },
                [](Expr a, Expr b, Expr, Expr dy) { return share(greater(a, b), equals(a, b), dy); }>,
           number_samples<Fill::Distinct>);

// ---- Power and remainder ----

namespace {

Result<Types> infer_pow(const OpCall& call) {
  if (Status s = need_number(call, "a")) return s;
  if (Status s = need_number(call, "b")) return s;
  Result<Shape> shape = broadcast_operands(call);
  if (!shape) return shape.takeError();
  return one_result(call["a"].dtype, *shape);
}

// Squares repeatedly and wraps; a negative exponent leaves 0 but for a = 1 and -1.
int64_t integer_power(int64_t a, int64_t e) {
  if (e < 0) return a == 1 ? 1 : a == -1 ? (e % 2 ? -1 : 1) : 0;
  uint64_t product = 1, factor = wrapping(a);
  for (; e > 0; e /= 2, factor *= factor)
    if (e % 2) product *= factor;
  return static_cast<int64_t>(product);
}

void pow_reference(const ReferenceCall& call) {
  const TensorView &a = call.in("a"), &b = call.in("b"), &y = call.out("y");
  const Shape& shape = y.type.shape;
  bool exact = is_integer(a.type.dtype) && is_integer(b.type.dtype);
  walk<2>(shape, {broadcast_strides(a.type.shape, shape), broadcast_strides(b.type.shape, shape)}, {},
          [&](int64_t i, const auto& at) {
            if (exact)
              y.set_int(i, integer_power(a.get_int(at[0]), b.get_int(at[1])));
            else
              y.set(i, std::pow(a.get(at[0]), b.get(at[1])));
          });
}

// A constant exponent, the usual case, needs neither the guard for exponent 0 nor, for squares, a power.
Expr pow_gradient_of_base(GradContext& g, Expr a, Expr dy) {
  if (std::optional<double> e = scalar_constant(g.b.graph(), g["b"])) {
    if (*e == 2) return dy * (a + a);
    return dy * (apply("pow", a, like(a, *e - 1)) * *e);
  }
  Expr e = cast(operand(g, "b"), a.type().dtype);
  return dy * where(equals(e, 0.0), like(a, 0), e * apply("pow", a, e - 1.0));
}

void pow_gradient(GradContext& g) {
  Expr a = operand(g, "a"), y = result(g), dy = out_grad(g);
  if (g.wants("a")) add_broadcast(g, "a", pow_gradient_of_base(g, a, dy));
  if (g.wants("b")) {
    Expr slope = where(equals(a, 0.0), like(a, 0), y * apply("log", a));
    add_broadcast(g, "b", cast(dy * slope, g.type(g["b"]).dtype));
  }
}

std::vector<Sample> pow_samples() {
  std::vector<Sample> list = binary_samples<Fill::Positive>();
  list.push_back({{samples::normal({2, 3}), samples::integers({3}, 1, 3)}, {}});
  list.push_back({{samples::integers({2, 3}, -3, 3), samples::integers({3}, 0, 4)}, {}});
  return list;
}

// With fmod the remainder has a's sign (C), without it b's (Python).
template <typename T>
T remainder(T a, T b, bool fmod) {
  T rest;
  if constexpr (std::is_floating_point_v<T>)
    rest = std::fmod(a, b);
  else
    rest = b == 0 || b == static_cast<T>(-1) ? 0 : a % b;
  bool other_sign = rest != 0 && (rest < 0) != (b < 0);
  return other_sign && !fmod ? rest + b : rest;
}

void mod_gradient(GradContext& g) {
  Expr dy = out_grad(g);
  if (g.wants("a")) add_broadcast(g, "a", dy);
  if (!g.wants("b")) return;
  Expr quotient = operand(g, "a") / operand(g, "b");
  Expr whole = g.attrs().get_int("fmod") ? apply("sign", quotient) * apply("floor", apply("abs", quotient))
                                         : apply("floor", quotient);
  add_broadcast(g, "b", -(dy * whole));
}

std::vector<Sample> mod_samples() {
  Attrs fmod{{"fmod", 1}};
  return {{{samples::distinct({3, 4}), samples::values({4}, {0.7, -1.1, 2.3, 5})}, fmod},
          {{samples::distinct({3, 4}), samples::values({4}, {0.7, -1.1, 2.3, 5})}, {}},
          {{samples::integers({8}, -9, 9), samples::values({}, {-4}, DType::I64)}, {}},
          {{samples::integers({8}, -9, 9), samples::values({}, {4}, DType::I64)}, fmod}};
}

}  // namespace

constinit const OpDef op_pow{
    .name = "pow",
    .summary = "a to the power b; b may have another dtype",
    .operands = {"a", "b"},
    .infer = infer_pow,
    .gradient = Gradient::rule(pow_gradient),
    .precision = Precision::Full,
    .elementwise = true,
    .in_place = {{"y", "a"}},
    .reference = pow_reference,
    .samples = pow_samples,
};

constinit const OpDef op_mod{
    .name = "mod",
    .summary = "remainder of a / b with the sign of b, or of a when {fmod=1}",
    .operands = {"a", "b"},
    .attrs = {{"fmod", 0}},
    .infer = infer_arithmetic,
    .gradient = Gradient::rule(mod_gradient),
    .precision = Precision::Full,
    .elementwise = true,
    .in_place = {{"y", "a"}, {"y", "b"}},
    .reference =
        map_binary<[](auto a, auto b, const Attrs& attrs) { return remainder(a, b, attrs.get_int("fmod") != 0); }>,
    .samples = mod_samples,
};

}  // namespace plimsoll
