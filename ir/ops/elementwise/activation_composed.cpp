// The rarer activations: unary functions of floats whose gradient is composed of other ops, and PReLU.

#include "ir/ops/elementwise/elementwise.h"

#include <algorithm>

namespace plimsoll {
namespace {

using samples::Fill;

template <auto f>
constexpr Gradient rule = unary_gradient<f>;

constexpr AttrSpecs alpha_attrs{{"alpha", AttrKind::Float}};

double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

double elu(double x, const Attrs& attrs) { return x > 0 ? x : attrs.get_float("alpha") * std::expm1(x); }
double celu(double x, const Attrs& attrs) {
  double alpha = attrs.get_float("alpha");
  return x > 0 ? x : alpha * std::expm1(x / alpha);
}
double leaky_relu(double x, const Attrs& attrs) { return x > 0 ? x : attrs.get_float("alpha") * x; }
double thresholded_relu(double x, const Attrs& attrs) { return x > attrs.get_float("alpha") ? x : 0; }
double shrink(double x, const Attrs& attrs) {
  double bias = attrs.get_float("bias"), lambd = attrs.get_float("lambd");
  return x < -lambd ? x + bias : x > lambd ? x - bias : 0;
}

std::vector<Sample> alpha_samples() {
  return {{{samples::distinct({3, 5})}, {{"alpha", 0.3}}},
          {{samples::distinct({20})}, {{"alpha", 1.5}}},
          {{samples::distinct({})}, {{"alpha", 1.0}}}};
}

}  // namespace

constinit const OpDef op_softplus =
    unary_op("softplus", "log(1 + exp(x))", infer_same_float, map_unary<softplus>,
             rule<[](Expr x, Expr, Expr dy) { return dy * apply("sigmoid", x); }>, unary_samples<Fill::Normal>);

// Of f32 in mixed precision, as log is: losses are made of it.
constinit const OpDef op_log_sigmoid = unary_op("log_sigmoid", "log(sigmoid(x)), finite for every x", infer_same_float,
                                                map_unary<[](double x) { return -softplus(-x); }>,
                                                rule<[](Expr x, Expr, Expr dy) { return dy * apply("sigmoid", -x); }>,
                                                unary_samples<Fill::Normal>, {}, Precision::Full);

constinit const OpDef op_softsign =
    unary_op("softsign", "x / (1 + |x|)", infer_same_float, map_unary<[](double x) { return x / (1 + std::fabs(x)); }>,
             rule<[](Expr x, Expr, Expr dy) {
               Expr scale = apply("abs", x) + 1.0;
               return dy / (scale * scale);
             }>,
             unary_samples<Fill::Distinct>);

// With t = tanh(softplus(x)): d/dx (x t) = t + x (1 - t^2) sigmoid(x).
constinit const OpDef op_mish =
    unary_op("mish", "x * tanh(softplus(x))", infer_same_float,
             map_unary<[](double x) { return x * std::tanh(softplus(x)); }>, rule<[](Expr x, Expr, Expr dy) {
               Expr t = apply("tanh", apply("softplus", x));
               return dy * (t + x * (1.0 - t * t) * apply("sigmoid", x));
             }>,
             unary_samples<Fill::Normal>);

constinit const OpDef op_elu =
    unary_op("elu", "x, or {alpha} * (exp(x) - 1) below 0", infer_same_float, map_unary<elu>,
             rule<[](Expr x, Expr, Expr dy, const Attrs& a) {
               return where(greater(x, 0.0), dy, dy * apply("exp", x) * a.get_float("alpha"));
             }>,
             alpha_samples, alpha_attrs);

constinit const OpDef op_celu =
    unary_op("celu", "x, or {alpha} * (exp(x / alpha) - 1) below 0", infer_same_float, map_unary<celu>,
             rule<[](Expr x, Expr, Expr dy, const Attrs& a) {
               return where(greater(x, 0.0), dy, dy * apply("exp", x / a.get_float("alpha")));
             }>,
             alpha_samples, alpha_attrs);

constinit const OpDef op_selu =
    unary_op("selu", "{gamma} * x, or gamma * {alpha} * (exp(x) - 1) below 0", infer_same_float,
             map_unary<[](double x, const Attrs& a) { return a.get_float("gamma") * elu(x, a); }>,
             rule<[](Expr x, Expr, Expr dy, const Attrs& attrs) {
               Expr scaled = dy * attrs.get_float("gamma");
               return where(greater(x, 0.0), scaled, scaled * apply("exp", x) * attrs.get_float("alpha"));
             }>,
             [] {
               return std::vector<Sample>{{{samples::distinct({3, 5})}, {{"alpha", 1.67}, {"gamma", 1.05}}}};
             },
             {{"alpha", AttrKind::Float}, {"gamma", AttrKind::Float}});

// A positive slope keeps the sign, so that backward can read y and x may be overwritten.
constinit const OpDef op_leaky_relu =
    unary_op("leaky_relu", "x, or {alpha} * x below 0", infer_same_float, map_unary<leaky_relu>,
             rule<[](Expr x, Expr y, Expr dy, const Attrs& attrs) {
               double alpha = attrs.get_float("alpha");
               return where(greater(alpha > 0 ? y : x, 0.0), dy, dy * alpha);
             }>,
             alpha_samples, alpha_attrs);

constinit const OpDef op_hard_sigmoid =
    unary_op("hard_sigmoid", "{alpha} * x + {beta}, clipped to [0, 1]", infer_same_float,
             map_unary<[](double x, const Attrs& attrs) {
               return std::clamp(attrs.get_float("alpha") * x + attrs.get_float("beta"), 0.0, 1.0);
             }>,
             rule<[](Expr, Expr y, Expr dy, const Attrs& attrs) {
               return where(both(greater(y, 0.0), less(y, 1.0)), dy * attrs.get_float("alpha"), 0.0);
             }>,
             [] {
               return std::vector<Sample>{{{samples::distinct({4, 6})}, {{"alpha", 0.2}, {"beta", 0.5}}}};
             },
             {{"alpha", AttrKind::Float}, {"beta", AttrKind::Float}});

constinit const OpDef op_hard_swish =
    unary_op("hard_swish", "x * clip(x / 6 + 1 / 2, 0, 1)", infer_same_float,
             map_unary<[](double x) { return x * std::clamp(x / 6 + 0.5, 0.0, 1.0); }>, rule<[](Expr x, Expr, Expr dy) {
               Expr middle = where(greater(x, -3.0), dy * (x * (1.0 / 3) + 0.5), 0.0);
               return where(less(x, 3.0), middle, dy);
             }>,
             unary_samples<Fill::Distinct>);

constinit const OpDef op_thresholded_relu = unary_op(
    "thresholded_relu", "x above {alpha}, else 0", infer_same_float, map_unary<thresholded_relu>,
    rule<[](Expr x, Expr, Expr dy, const Attrs& a) { return where(greater(x, a.get_float("alpha")), dy, 0.0); }>,
    alpha_samples, alpha_attrs);

constinit const OpDef op_shrink =
    unary_op("shrink", "x + {bias} below -{lambd}, x - bias above lambd, 0 between", infer_same_float,
             map_unary<shrink>, rule<[](Expr x, Expr, Expr dy, const Attrs& attrs) {
               return where(greater(apply("abs", x), attrs.get_float("lambd")), dy, 0.0);
             }>,
             [] {
               return std::vector<Sample>{{{samples::distinct({3, 5})}, {{"bias", 0.4}, {"lambd", 0.8}}}};
             },
             {{"bias", AttrKind::Float}, {"lambd", AttrKind::Float}});

// ---- PReLU (He et al. 2015) ----

namespace {

Result<Types> infer_prelu(const OpCall& call) {
  if (Status s = need_float(call, "x")) return s;
  if (Status s = need_same_dtype(call, "x", "slope")) return s;
  Result<Shape> shape = broadcast_operands(call);
  if (!shape) return shape.takeError();
  if (*shape != call["x"].shape)
    return model_error("the slope " + to_string(call["slope"]) + " does not broadcast to x " + to_string(call["x"]));
  return Types{call["x"]};
}

std::vector<Sample> prelu_samples() {
  return {{{samples::distinct({2, 3, 2}), samples::positive({3, 1})}, {}},
          {{samples::distinct({5}), samples::positive({})}, {}}};
}

}  // namespace

constinit const OpDef op_prelu{
    .name = "prelu",
    .summary = "x, or slope * x below 0; the slope broadcasts to x",
    .operands = {"x", "slope"},
    .infer = infer_prelu,
    .gradient = Gradient::rule(
        binary_rule<[](Expr x, Expr slope, Expr, Expr dy) { return where(greater(x, 0.0), dy, dy * slope); },
                    [](Expr x, Expr, Expr, Expr dy) { return where(greater(x, 0.0), like(dy, 0), dy * x); }>),
    .elementwise = true,
    .in_place = {{"y", "x"}},
    .reference = map_binary<[](double x, double slope) { return x < 0 ? slope * x : x; }>,
    .samples = prelu_samples,
};

}  // namespace plimsoll
