#include "ir/ops/elementwise/activation.h"

#include "ir/ops/elementwise/elementwise.h"

#include <numbers>

// Activations that training meets most, each with a gradient op of its own, so that backward is one pass over
// memory.

namespace plimsoll {
namespace {

using samples::Fill;

template <auto f>
constexpr Gradient rule = unary_gradient<f>;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// ---- GELU (Hendrycks and Gimpel 2016): x times the normal distribution function, or its tanh form ----

constexpr double tanh_form_scale = 0.7978845608028654;  // sqrt(2 / pi)
constexpr double tanh_form_cubic = 0.044715;

bool uses_tanh(const Attrs& attrs) { return attrs.get_string("approximate", "none") == "tanh"; }

constexpr AttrSpecs gelu_attrs{{"approximate", "none"}};

Result<Types> infer_gelu(const OpCall& call) {
  if (Status s = need_choice(call.attrs, "approximate", {"none", "tanh"})) return s;
  if (Status s = need_float(call, "x")) return s;
  return Types{call["x"]};
}

std::vector<Sample> gelu_samples() {
  return {{{samples::normal({3, 5})}, {}},
          {{samples::normal({6})}, {{"approximate", "tanh"}}},
          {{samples::normal({})}, {{"approximate", "none"}}}};
}

}  // namespace

double gelu(double x, const Attrs& attrs) {
  double t = uses_tanh(attrs) ? std::tanh(tanh_form_scale * (x + tanh_form_cubic * x * x * x))
                              : std::erf(x / std::numbers::sqrt2);
  return 0.5 * x * (1 + t);
}

double gelu_slope(double x, const Attrs& attrs) {
  if (uses_tanh(attrs)) {
    double t = std::tanh(tanh_form_scale * (x + tanh_form_cubic * x * x * x));
    double inner = tanh_form_scale * (1 + 3 * tanh_form_cubic * x * x);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner;
  }
  double density = std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
  return 0.5 * (1 + std::erf(x / std::numbers::sqrt2)) + x * density;
}

// The sign of y is the sign of x where it matters, so backward reads the result.
constinit const OpDef op_relu =
    unary_op("relu", "max(x, 0)", infer_same_float, map_unary<[](double x) { return x < 0 ? 0.0 : x; }>,
             rule<[](Expr, Expr y, Expr dy) { return apply("relu_grad", y, dy); }>, unary_samples<Fill::Distinct>);

constinit const OpDef op_sigmoid =
    unary_op("sigmoid", "1 / (1 + exp(-x))", infer_same_float, map_unary<sigmoid>,
             rule<[](Expr, Expr y, Expr dy) { return apply("sigmoid_grad", y, dy); }>, unary_samples<Fill::Normal>);

constinit const OpDef op_silu =
    unary_op("silu", "x * sigmoid(x)", infer_same_float, map_unary<[](double x) { return x * sigmoid(x); }>,
             rule<[](Expr x, Expr, Expr dy) { return apply("silu_grad", x, dy); }>, unary_samples<Fill::Normal>);

constinit const OpDef op_gelu = unary_op(
    "gelu", "x times the normal distribution function, or its tanh form {approximate=none|tanh}", infer_gelu,
    map_unary<gelu>, rule<[](Expr x, Expr, Expr dy, const Attrs& attrs) { return apply("gelu_grad", x, dy, attrs); }>,
    gelu_samples, gelu_attrs);

// ---- Gradients of the common ones ----

namespace {

constexpr OpDef gradient_op(llvm::StringLiteral name, llvm::StringLiteral summary, Port reads, ReferenceFn reference,
                            Gradient gradient) {
  return {.name = name,
          .summary = summary,
          .operands = {reads, "dy"},
          .results = {"dx"},
          .infer = infer_same_float,
          .gradient = gradient,
          .elementwise = true,
          .in_place = {{"dx", reads.name}, {"dx", "dy"}},
          .linear = {"dy"},
          .reference = reference,
          .samples = [] {
            return std::vector<Sample>{{{samples::distinct({2, 3}), samples::normal({2, 3})}, {}},
                                       {{samples::distinct({}), samples::normal({})}, {}}};
          }};
}

constexpr Gradient no_second_order = Gradient::missing("second derivatives of this activation are not derived");

// y is a plain number, the derivative of the relu's slope is 0.
void relu_grad_gradient(GradContext& g) {
  if (g.wants("y")) g.add("y", zeros(g.b, g.type(g["y"])));
  if (g.wants("dy")) g.add("dy", apply("relu_grad", operand(g, "y"), out_grad(g)));
}

Result<Types> infer_gelu_grad(const OpCall& call) {
  for (size_t i = 0; i < 2; ++i)
    if (Status s = need_float(call, i)) return s;
  if (Status s = need_type(call, "dy", call.operand(0))) return s;
  return infer_gelu(call);
}

std::vector<Sample> gelu_grad_samples() {
  return {{{samples::normal({2, 3}), samples::normal({2, 3})}, {}},
          {{samples::normal({4}), samples::normal({4})}, {{"approximate", "tanh"}}}};
}

constexpr OpDef gelu_grad_record() {
  OpDef op = gradient_op("gelu_grad", "dy times the slope of gelu at x {approximate}", "x",
                         map_binary<[](double x, double dy, const Attrs& a) { return dy * gelu_slope(x, a); }>,
                         no_second_order);
  op.attrs = gelu_attrs;
  op.infer = infer_gelu_grad;
  op.samples = gelu_grad_samples;
  return op;
}

}  // namespace

constinit const OpDef op_relu_grad =
    gradient_op("relu_grad", "dy where y > 0, else 0; y = relu(x)", "y",
                map_binary<[](double y, double dy) { return 0 < y ? dy : 0.0; }>, Gradient::rule(relu_grad_gradient));

constinit const OpDef op_sigmoid_grad =
    gradient_op("sigmoid_grad", "dy * y * (1 - y); y = sigmoid(x)", "y",
                map_binary<[](double y, double dy) { return dy * y * (1 - y); }>,
                Gradient::rule(binary_rule<[](Expr y, Expr dy, Expr, Expr d) { return d * dy * (1.0 - (y + y)); },
                                           [](Expr y, Expr, Expr, Expr d) { return apply("sigmoid_grad", y, d); }>));

constinit const OpDef op_tanh_grad = gradient_op(
    "tanh_grad", "dy * (1 - y * y); y = tanh(x)", "y", map_binary<[](double y, double dy) { return dy * (1 - y * y); }>,
    Gradient::rule(binary_rule<[](Expr y, Expr dy, Expr, Expr d) { return d * dy * (y * -2.0); },
                               [](Expr y, Expr, Expr, Expr d) { return apply("tanh_grad", y, d); }>));

constinit const OpDef op_silu_grad =
    gradient_op("silu_grad", "dy times the slope of silu at x", "x", map_binary<[](double x, double dy) {
                  double s = sigmoid(x);
                  return dy * s * (1 + x * (1 - s));
                }>,
                no_second_order);

constinit const OpDef op_gelu_grad = gelu_grad_record();

}  // namespace plimsoll
