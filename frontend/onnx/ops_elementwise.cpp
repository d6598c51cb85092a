#include "frontend/onnx/import_rows.h"

// Imports elementwise operators. Most are our ops with another name.

namespace plimsoll {
namespace {

constexpr auto same = import_as_is;

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

// x * sigmoid(alpha * x)
void import_swish(NodeContext& n) {
  ValueId x = n.input(0);
  double alpha = n.attr_float("alpha", 1.0);
  if (alpha == 1.0) return n.output(0, n.emit("silu", {x}));
  ValueId scaled = n.emit("mul", {x, n.scalar(alpha, n.type(x).dtype)});
  n.output(0, n.emit("mul", {x, n.emit("sigmoid", {scaled})}));
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

// No gradient goes through what the model detached.
void import_identity(NodeContext& n) {
  const ValueId x = n.input(0);
  const bool ends = is_recorded_detach(n.node()) && is_float(n.type(x).dtype) && !n.constant(x);
  n.output(0, ends ? n.emit("detach", {x}) : x);
}

constexpr ImportRow elementwise_table[] = {
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
    {"Celu", 12, same, "celu", {{"alpha", 1.0}}},
    {"Clip", 6, import_clip_attributes},
    {"Clip", 11, import_clip},
    {"Cos", 7, same, "cos"},
    {"Cosh", 9, same, "cosh"},
    {"Div", 7, same, "div"},
    {"Elu", 6, same, "elu", {{"alpha", 1.0}}},
    {"Equal", 7, same, "equal"},
    {"Erf", 9, same, "erf"},
    {"Exp", 6, same, "exp"},
    {"Floor", 6, same, "floor"},
    {"Gelu", 20, same, "gelu", {{"approximate", "none"}}},
    {"Greater", 7, same, "greater"},
    {"GreaterOrEqual", 12, same, "greater_equal"},
    {"HardSigmoid", 6, same, "hard_sigmoid", {{"alpha", 0.2f}, {"beta", 0.5}}},
    {"HardSwish", 14, same, "hard_swish"},
    {"Identity", 1, import_identity},
    {"IsInf", 10, import_is_inf},
    {"IsNaN", 9, same, "is_nan"},
    {"LeakyRelu", 6, same, "leaky_relu", {{"alpha", 0.01f}}},
    {"Less", 7, same, "less"},
    {"LessOrEqual", 12, same, "less_equal"},
    {"Log", 6, same, "log"},
    {"Max", 8, import_chain, "max"},
    {"Mean", 8, import_mean, "add"},
    {"Min", 8, import_chain, "min"},
    {"Mish", 18, same, "mish"},
    {"Mod", 10, same, "mod", {{"fmod", 0}}},
    {"Mul", 7, same, "mul"},
    {"Neg", 6, same, "neg"},
    {"Not", 1, same, "not"},
    {"Or", 7, same, "or"},
    {"PRelu", 9, same, "prelu"},
    {"Pow", 7, same, "pow"},
    {"Reciprocal", 6, same, "reciprocal"},
    {"Relu", 6, same, "relu"},
    {"Round", 11, same, "round"},
    {"Selu", 6, same, "selu", {{"alpha", 1.67326319217681884765625}, {"gamma", 1.05070102214813232421875}}},
    {"Shrink", 9, same, "shrink", {{"bias", 0.0}, {"lambd", 0.5}}},
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
    {"ThresholdedRelu", 10, same, "thresholded_relu", {{"alpha", 1.0}}},
    {"Where", 9, same, "where"},
    {"Xor", 7, same, "xor"},
};

}  // namespace

llvm::ArrayRef<ImportRow> elementwise_rows() { return elementwise_table; }

}  // namespace plimsoll
