#include "frontend/onnx/import_rows.h"

// Imports elementwise operators. Most are our ops with another name.

namespace plimsoll {
namespace {

// Passes all inputs in order and no attributes.
void same(NodeContext& n) { n.output(0, n.emit(n.target(), n.inputs())); }

void first_input(NodeContext& n) { n.output(0, n.input(0)); }

// Max, Min and Sum of n inputs combine pairs from the left.
ValueId chain(NodeContext& n) {
  ValueId result = n.input(0);
  for (size_t i = 1; i < n.input_count(); ++i) result = n.emit(n.target(), {result, n.input(i)});
  return result;
}
void import_chain(NodeContext& n) { n.output(0, chain(n)); }

void import_mean(NodeContext& n) {
  ValueId sum = chain(n);
  n.output(0, n.emit("div", {sum, n.scalar(static_cast<double>(n.input_count()), n.type(sum).dtype)}));
}

struct FloatAttr {
  llvm::StringLiteral name;
  double otherwise;
};

void with_floats(NodeContext& n, std::initializer_list<FloatAttr> list) {
  Attrs attrs;
  for (const FloatAttr& attr : list) attrs.set(attr.name, n.attr_float(attr.name, attr.otherwise));
  n.output(0, n.emit(n.target(), {n.input(0)}, attrs));
}

// Elu, Celu and ThresholdedRelu have one attribute alpha, 1 by default.
void import_alpha(NodeContext& n) { with_floats(n, {{"alpha", 1.0}}); }
void import_leaky_relu(NodeContext& n) { with_floats(n, {{"alpha", 0.01f}}); }
void import_selu(NodeContext& n) {
  with_floats(n, {{"alpha", 1.67326319217681884765625}, {"gamma", 1.05070102214813232421875}});
}
void import_hard_sigmoid(NodeContext& n) { with_floats(n, {{"alpha", 0.2f}, {"beta", 0.5}}); }
void import_shrink(NodeContext& n) { with_floats(n, {{"bias", 0.0}, {"lambd", 0.5}}); }

void import_gelu(NodeContext& n) {
  n.output(0, n.emit("gelu", {n.input(0)}, {{"approximate", n.attr_string("approximate", "none")}}));
}

// x * sigmoid(alpha * x)
void import_swish(NodeContext& n) {
  ValueId x = n.input(0);
  double alpha = n.attr_float("alpha", 1.0);
  if (alpha == 1.0) return n.output(0, n.emit("silu", {x}));
  ValueId scaled = n.emit("mul", {x, n.scalar(alpha, n.type(x).dtype)});
  n.output(0, n.emit("mul", {x, n.emit("sigmoid", {scaled})}));
}

void import_mod(NodeContext& n) {
  n.output(0, n.emit("mod", {n.input(0), n.input(1)}, {{"fmod", n.attr_int("fmod", 0)}}));
}

void import_bit_shift(NodeContext& n) {
  std::string direction = n.attr_string("direction", "");
  llvm::StringRef ours = direction == "LEFT" ? "left" : "right";
  if (direction != "LEFT" && direction != "RIGHT") n.fail("direction is '" + direction + "', not LEFT or RIGHT");
  n.output(0, n.emit("bit_shift", {n.input(0), n.input(1)}, {{"direction", ours.str()}}));
}

void import_is_inf(NodeContext& n) {
  n.output(0, n.emit("is_inf", {n.input(0)},
                     {{"negative", n.attr_int("detect_negative", 1)}, {"positive", n.attr_int("detect_positive", 1)}}));
}

void import_cast(NodeContext& n) {
  if (!n.has_attr("to")) n.fail("attribute to is missing");
  n.output(0, n.cast(n.input(0), n.attr_dtype("to", DType::F32)));
}

void import_cast_like(NodeContext& n) { n.output(0, n.cast(n.input(0), n.type(n.input(1)).dtype)); }

// The bounds are attributes (opset 6).
void import_clip_attributes(NodeContext& n) {
  Attrs attrs;
  for (llvm::StringRef bound : {"min", "max"})
    if (n.has_attr(bound)) attrs.set(bound, n.attr_float(bound, 0));
  n.output(0, attrs.empty() ? n.input(0) : n.emit("clip", {n.input(0)}, attrs));
}

// The bounds are inputs. Known bounds of floats become attributes.
void import_clip(NodeContext& n) {
  ValueId x = n.input(0);
  Attrs attrs;
  bool known = is_float(n.type(x).dtype);
  for (size_t i : {1, 2}) {
    if (!n.has(i)) continue;
    TensorRef bound = n.constant(n.input(i));
    known &= bound && bound->type().elements() == 1;
    if (known) attrs.set(i == 1 ? "min" : "max", bound->get(0));
  }
  if (!n.has(1) && !n.has(2)) return n.output(0, x);
  if (known) return n.output(0, n.emit("clip", {x}, attrs));
  if (n.has(1)) x = n.emit("max", {x, n.input(1)});
  if (n.has(2)) x = n.emit("min", {x, n.input(2)});
  n.output(0, x);
}

constexpr ImportRow rows[] = {
    {"Abs", 6, same, "abs"},
    {"Acos", 7, same, "acos"},
    {"Acosh", 9, same, "acosh"},
    {"Add", 7, same, "add"},
    {"And", 7, same, "and"},
    {"Asin", 7, same, "asin"},
    {"Asinh", 9, same, "asinh"},
    {"Atan", 7, same, "atan"},
    {"Atanh", 9, same, "atanh"},
    {"BitShift", 11, import_bit_shift},
    {"BitwiseAnd", 18, same, "bitwise_and"},
    {"BitwiseNot", 18, same, "bitwise_not"},
    {"BitwiseOr", 18, same, "bitwise_or"},
    {"BitwiseXor", 18, same, "bitwise_xor"},
    {"Cast", 6, import_cast},
    {"CastLike", 15, import_cast_like},
    {"Ceil", 6, same, "ceil"},
    {"Celu", 12, import_alpha, "celu"},
    {"Clip", 6, import_clip_attributes},
    {"Clip", 11, import_clip},
    {"Cos", 7, same, "cos"},
    {"Cosh", 9, same, "cosh"},
    {"Div", 7, same, "div"},
    {"Elu", 6, import_alpha, "elu"},
    {"Equal", 7, same, "equal"},
    {"Erf", 9, same, "erf"},
    {"Exp", 6, same, "exp"},
    {"Floor", 6, same, "floor"},
    {"Gelu", 20, import_gelu},
    {"Greater", 7, same, "greater"},
    {"GreaterOrEqual", 12, same, "greater_equal"},
    {"HardSigmoid", 6, import_hard_sigmoid, "hard_sigmoid"},
    {"HardSwish", 14, same, "hard_swish"},
    {"Identity", 1, first_input},
    {"IsInf", 10, import_is_inf},
    {"IsNaN", 9, same, "is_nan"},
    {"LeakyRelu", 6, import_leaky_relu, "leaky_relu"},
    {"Less", 7, same, "less"},
    {"LessOrEqual", 12, same, "less_equal"},
    {"Log", 6, same, "log"},
    {"Max", 8, import_chain, "max"},
    {"Mean", 8, import_mean, "add"},
    {"Min", 8, import_chain, "min"},
    {"Mish", 18, same, "mish"},
    {"Mod", 10, import_mod},
    {"Mul", 7, same, "mul"},
    {"Neg", 6, same, "neg"},
    {"Not", 1, same, "not"},
    {"Or", 7, same, "or"},
    {"PRelu", 9, same, "prelu"},
    {"Pow", 7, same, "pow"},
    {"Reciprocal", 6, same, "reciprocal"},
    {"Relu", 6, same, "relu"},
    {"Round", 11, same, "round"},
    {"Selu", 6, import_selu, "selu"},
    {"Shrink", 9, import_shrink, "shrink"},
    {"Sigmoid", 6, same, "sigmoid"},
    {"Sign", 9, same, "sign"},
    {"Sin", 7, same, "sin"},
    {"Sinh", 9, same, "sinh"},
    {"Softplus", 1, same, "softplus"},
    {"Softsign", 1, same, "softsign"},
    {"Sqrt", 6, same, "sqrt"},
    {"Sub", 7, same, "sub"},
    {"Sum", 8, import_chain, "add"},
    {"Swish", 24, import_swish},
    {"Tan", 7, same, "tan"},
    {"Tanh", 6, same, "tanh"},
    {"ThresholdedRelu", 10, import_alpha, "thresholded_relu"},
    {"Where", 9, same, "where"},
    {"Xor", 7, same, "xor"},
};

}  // namespace

llvm::ArrayRef<ImportRow> elementwise_rows() { return rows; }

}  // namespace plimsoll
