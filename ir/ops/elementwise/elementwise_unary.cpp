// Unary arithmetic: y has x's type. Each gradient reads x or y, whichever the formula needs less of.

#include "ir/ops/elementwise/elementwise.h"

#include <numbers>

namespace plimsoll {
namespace {

using samples::Fill;

Result<Types> infer_numeric(const OpCall& call) {
  if (Status s = need_number(call, "x")) return s;
  return infer_same(call);
}

Result<Types> infer_integer(const OpCall& call) {
  if (Status s = need_integer(call, "x")) return s;
  return infer_same(call);
}

constexpr OpDef unary(llvm::StringLiteral name, llvm::StringLiteral summary, ReferenceFn reference, Gradient gradient,
                      SamplesFn samples, Precision precision = Precision::Follow) {
  return unary_op(name, summary, infer_same_float, reference, gradient, samples, {}, precision);
}

template <auto f>
constexpr Gradient rule = unary_gradient<f>;

// Integers alone get here; the overload for floats only completes the table.
constexpr auto flip_bits = [](auto x) {
  if constexpr (std::is_integral_v<decltype(x)>)
    return ~x;
  else
    return x;
};

// The smallest integer is its own negative.
template <typename T>
T negated(T x) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(0 - static_cast<uint64_t>(x));
  else
    return -x;
}

template <typename T>
T magnitude(T x) {
  if constexpr (std::is_integral_v<T>)
    return x < 0 ? negated(x) : x;
  else
    return std::fabs(x);
}

// acosh is real from 1 on.
std::vector<Sample> above_one_samples() { return {{{samples::values({4}, {1.1, 1.5, 2.0, 7.0})}, {}}}; }

std::vector<Sample> signed_samples() {
  std::vector<Sample> list = unary_samples<Fill::Distinct>();
  list.push_back({{samples::integers({6}, -5, 5, DType::I64)}, {}});
  list.push_back({{samples::integers({2, 2}, -5, 5, DType::I8)}, {}});
  return list;
}

std::vector<Sample> bit_samples() {
  return {{{samples::integers({6}, -9, 9, DType::I64)}, {}}, {{samples::integers({2, 3}, 0, 255, DType::U8)}, {}}};
}

}  // namespace

// ---- Sign and rounding ----

constinit const OpDef op_neg =
    with_linear(unary_op("neg", "-x; floats and integers", infer_numeric, map_unary<[](auto x) { return negated(x); }>,
                         rule<[](Expr, Expr, Expr dy) { return -dy; }>, signed_samples),
                {"x"});

constinit const OpDef op_abs =
    unary_op("abs", "|x|; floats and integers", infer_numeric, map_unary<[](auto x) { return magnitude(x); }>,
             rule<[](Expr x, Expr, Expr dy) { return dy * apply("sign", x); }>, signed_samples);

constinit const OpDef op_sign = unary_op("sign", "-1, 0 or 1; floats and integers", infer_numeric,
                                         map_unary<[](auto x) { return static_cast<decltype(x)>((x > 0) - (x < 0)); }>,
                                         Gradient::zero(), signed_samples);

constinit const OpDef op_floor =
    unary("floor", "the largest integer not above x", map_unary<[](double x) { return std::floor(x); }>,
          Gradient::zero(), unary_samples<Fill::Distinct>);

constinit const OpDef op_ceil =
    unary("ceil", "the smallest integer not below x", map_unary<[](double x) { return std::ceil(x); }>,
          Gradient::zero(), unary_samples<Fill::Distinct>);

constinit const OpDef op_round =
    unary("round", "the nearest integer, halves to even", map_unary<[](double x) { return std::nearbyint(x); }>,
          Gradient::zero(), unary_samples<Fill::Distinct>);

constinit const OpDef op_bitwise_not = unary_op("bitwise_not", "every bit of an integer flipped", infer_integer,
                                                map_unary<flip_bits>, Gradient::zero(), bit_samples);

// ---- Powers and exponentials ----

constinit const OpDef op_exp =
    unary("exp", "e to the power x", map_unary<[](double x) { return std::exp(x); }>,
          rule<[](Expr, Expr y, Expr dy) { return dy * y; }>, unary_samples<Fill::Normal>, Precision::Full);

constinit const OpDef op_log = with_exact(
    unary("log", "natural logarithm", map_unary<[](double x) { return std::log(x); }>,
          rule<[](Expr x, Expr, Expr dy) { return dy / x; }>, unary_samples<Fill::Positive>, Precision::Full),
    "x");

constinit const OpDef op_sqrt =
    unary("sqrt", "square root", map_unary<[](double x) { return std::sqrt(x); }>,
          rule<[](Expr, Expr y, Expr dy) { return dy / (y + y); }>, unary_samples<Fill::Positive>);

constinit const OpDef op_rsqrt = unary("rsqrt", "1 / sqrt(x)", map_unary<[](double x) { return 1 / std::sqrt(x); }>,
                                       rule<[](Expr, Expr y, Expr dy) { return dy * (y * y * y) * -0.5; }>,
                                       unary_samples<Fill::Positive>, Precision::Full);

constinit const OpDef op_reciprocal =
    unary("reciprocal", "1 / x", map_unary<[](double x) { return 1 / x; }>,
          rule<[](Expr, Expr y, Expr dy) { return -(dy * (y * y)); }>, unary_samples<Fill::Positive>, Precision::Full);

constinit const OpDef op_erf =
    unary("erf", "error function", map_unary<[](double x) { return std::erf(x); }>,
          rule<[](Expr x, Expr, Expr dy) { return dy * apply("exp", -(x * x)) * (2 / std::sqrt(std::numbers::pi)); }>,
          unary_samples<Fill::Normal>);

// ---- Trigonometry ----

constinit const OpDef op_sin =
    unary("sin", "sine of x in radians", map_unary<[](double x) { return std::sin(x); }>,
          rule<[](Expr x, Expr, Expr dy) { return dy * apply("cos", x); }>, unary_samples<Fill::Normal>);

constinit const OpDef op_cos =
    unary("cos", "cosine of x in radians", map_unary<[](double x) { return std::cos(x); }>,
          rule<[](Expr x, Expr, Expr dy) { return -(dy * apply("sin", x)); }>, unary_samples<Fill::Normal>);

constinit const OpDef op_tan =
    unary("tan", "tangent of x in radians", map_unary<[](double x) { return std::tan(x); }>,
          rule<[](Expr, Expr y, Expr dy) { return dy * (y * y + 1.0); }>, unary_samples<Fill::Unit>, Precision::Full);

constinit const OpDef op_asin = unary("asin", "inverse sine", map_unary<[](double x) { return std::asin(x); }>,
                                      rule<[](Expr x, Expr, Expr dy) { return dy * apply("rsqrt", 1.0 - x * x); }>,
                                      unary_samples<Fill::Unit>, Precision::Full);

constinit const OpDef op_acos = unary("acos", "inverse cosine", map_unary<[](double x) { return std::acos(x); }>,
                                      rule<[](Expr x, Expr, Expr dy) { return -(dy * apply("rsqrt", 1.0 - x * x)); }>,
                                      unary_samples<Fill::Unit>, Precision::Full);

constinit const OpDef op_atan =
    unary("atan", "inverse tangent", map_unary<[](double x) { return std::atan(x); }>,
          rule<[](Expr x, Expr, Expr dy) { return dy / (x * x + 1.0); }>, unary_samples<Fill::Normal>);

// ---- Hyperbolic functions ----

constinit const OpDef op_sinh = unary("sinh", "hyperbolic sine", map_unary<[](double x) { return std::sinh(x); }>,
                                      rule<[](Expr x, Expr, Expr dy) { return dy * apply("cosh", x); }>,
                                      unary_samples<Fill::Normal>, Precision::Full);

constinit const OpDef op_cosh = unary("cosh", "hyperbolic cosine", map_unary<[](double x) { return std::cosh(x); }>,
                                      rule<[](Expr x, Expr, Expr dy) { return dy * apply("sinh", x); }>,
                                      unary_samples<Fill::Normal>, Precision::Full);

constinit const OpDef op_tanh =
    unary("tanh", "hyperbolic tangent", map_unary<[](double x) { return std::tanh(x); }>,
          rule<[](Expr, Expr y, Expr dy) { return apply("tanh_grad", y, dy); }>, unary_samples<Fill::Normal>);

constinit const OpDef op_asinh =
    unary("asinh", "inverse hyperbolic sine", map_unary<[](double x) { return std::asinh(x); }>,
          rule<[](Expr x, Expr, Expr dy) { return dy * apply("rsqrt", x * x + 1.0); }>, unary_samples<Fill::Normal>);

constinit const OpDef op_acosh =
    unary("acosh", "inverse hyperbolic cosine", map_unary<[](double x) { return std::acosh(x); }>,
          rule<[](Expr x, Expr, Expr dy) { return dy * apply("rsqrt", x * x - 1.0); }>, above_one_samples);

constinit const OpDef op_atanh =
    unary("atanh", "inverse hyperbolic tangent", map_unary<[](double x) { return std::atanh(x); }>,
          rule<[](Expr x, Expr, Expr dy) { return dy / (1.0 - x * x); }>, unary_samples<Fill::Unit>);

}  // namespace plimsoll
