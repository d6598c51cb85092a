#include "runtime/kernels/fused_statements.h"

#include "runtime/kernels/elementwise.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FormatVariadic.h"

#include <cmath>

namespace plimsoll {
namespace {

using llvm::formatv;

// ---- Formulas ----

// The text of a function's formula in kernels/elementwise.def, by its op or by the name of one of its op's forms.
struct Formula {
  llvm::StringLiteral name, text;
  llvm::StringLiteral parameters;
  llvm::StringLiteral result = "float", element = "float";
};

constexpr Formula formulas[] = {
#define PLIMSOLL_UNARY(op, Name, formula) {#op, #formula, "C x, C a, C b"},
#define PLIMSOLL_UNARY_FORM(form, Name, formula) {#form, #formula, "C x, C a, C b"},
#define PLIMSOLL_UNARY_GRAD(op, Name, formula) {#op, #formula, "C x, C dy"},
#define PLIMSOLL_UNARY_GRAD_FORM(form, Name, formula) {#form, #formula, "C x, C dy"},
#define PLIMSOLL_BINARY(op, Name, formula) {#op, #formula, "C a, C b"},
#define PLIMSOLL_BINARY_FORM(form, Name, formula) {#form, #formula, "C a, C b"},
#define PLIMSOLL_COMPARE(op, Name, formula) {#op, #formula, "C a, C b", "bool"},
#define PLIMSOLL_LOGIC(op, Name, formula) {#op, #formula, "C a, C b", "bool", "bool"},
#define PLIMSOLL_BITWISE(op, Name, formula)
#include "kernels/elementwise.def"
};

// The parameters of functions that have them are the op's attributes.
struct FormulaParameters {
  llvm::StringLiteral op, a, b;
};
constexpr FormulaParameters parameters[] = {
#define PLIMSOLL_UNARY_WITH(op, Name, first, second, formula) {#op, #first, #second},
#include "kernels/elementwise.def"
};

const Formula* find_formula(llvm::StringRef name) {
  const auto* found = llvm::find_if(formulas, [&](const Formula& each) { return each.name == name; });
  return found == std::end(formulas) ? nullptr : found;
}

// Adds the function that has the formula.
void define(std::string& functions, const Formula& formula) {
  const std::string head = formatv("op_{0}(", formula.name).str();
  if (llvm::StringRef(functions).contains(" " + head)) return;
  const bool compares = formula.result == "bool" && formula.element == "float";
  functions += compares ? "template <typename C>\n" : "";
  const std::string body = compares ? "" : formatv("using C = {0}; ", formula.element).str();
  std::string parameters = formula.parameters.str();
  if (!compares)
    for (size_t at = 0; (at = parameters.find("C ", at)) != std::string::npos; at += 2)
      parameters.replace(at, 1, formula.element.str());
  functions += formatv("__device__ inline {0} {1}{2}) {{ {3}return {4}; }\n", formula.result, head, parameters, body,
                       formula.text)
                   .str();
}

// ---- Numbers and conversions ----

std::string float_literal(double number) {
  const auto value = static_cast<float>(number);
  if (std::isnan(value)) return "__int_as_float(0x7fffffff)";
  if (std::isinf(value)) return value < 0 ? "-__int_as_float(0x7f800000)" : "__int_as_float(0x7f800000)";
  char text[48];
  std::snprintf(text, sizeof text, "%af", static_cast<double>(value));
  return text;
}

std::string literal(const Tensor& value) {
  const DType dtype = value.type().dtype;
  if (is_float(dtype)) return float_literal(value.get(0));
  return formatv("static_cast<{0}>({1}LL)", register_type(dtype), value.get_int(0)).str();
}

// Floats become integers by truncation, and these wrap.
std::string cast(const std::string& x, DType from, DType to) {
  if (to == DType::Bool) return x + " != 0";
  if (is_float(from) && is_integer(to))
    return formatv("static_cast<{0}>(static_cast<int64_t>({1}))", register_type(to), x).str();
  return formatv("static_cast<{0}>({1})", register_type(to), x).str();
}

std::string is_inf(const OpCall& call, const std::string& x) {
  const bool negative = call.get_int("negative") != 0, positive = call.get_int("positive") != 0;
  return formatv("isinf({0}) && ({0} < 0 ? {1} : {2})", x, negative ? "true" : "false", positive ? "true" : "false")
      .str();
}

}  // namespace

llvm::StringRef stored_type(DType dtype) {
  switch (dtype) {
    case DType::F32: return "float";
    case DType::BF16: return "bf16";
    case DType::F16: return "f16";
    case DType::I64: return "int64_t";
    case DType::I32: return "int32_t";
    case DType::U8: return "uint8_t";
    default: return "bool";
  }
}
llvm::StringRef register_type(DType dtype) { return is_float(dtype) ? "float" : stored_type(dtype); }

BodyStatements::BodyStatements(const Graph& body) : body_(body), names_(body.value_count()) {
  for (size_t i = 0; i < body.inputs.size(); ++i) names_[index_of(body.inputs[i])] = formatv("x{0}", i).str();
  int made = 0;
  for (NodeId id : body.order()) {
    const Node& node = body.node(id);
    names_[index_of(node.results[0])] = formatv("v{0}", made++).str();
    if (node.op->name != "dropout") continue;
    drops_.push_back(id);
    streams_.push_back(static_cast<uint32_t>(node.attrs.get_int("id")));
  }
}

std::string BodyStatements::write(NodeId id) {
  const Node& node = body_.node(id);
  const DType dtype = body_.type(node.results[0]).dtype;
  std::string value = expression(node, dtype);
  if (is_16_bit_float(dtype) && node.op->name != "constant")
    value = formatv("rounded<{0}>({1})", stored_type(dtype), value).str();
  return formatv("const {0} {1} = {2};", register_type(dtype), name_of(node.results[0]), value).str();
}

std::string BodyStatements::draws(llvm::ArrayRef<NodeId> nodes, int64_t length, llvm::StringRef at) const {
  std::string text;
  for (size_t i = 0; i < drops_.size(); ++i)
    if (llvm::is_contained(nodes, drops_[i]))
      text += formatv("const Draws<{0}> draws{1}(RandomStream{{{2}_at, stream{1}}, first_draw + {3});\n", length, i,
                      argument(body_.node(drops_[i]), 1), at)
                  .str();
  return text;
}

size_t BodyStatements::stream_of(const Node& node) const {
  const auto found = llvm::find_if(drops_, [&](NodeId id) { return &body_.node(id) == &node; });
  return static_cast<size_t>(found - drops_.begin());
}

std::string BodyStatements::expression(const Node& node, DType dtype) {
  const auto types = operand_types(body_, node);
  const OpCall call(*node.op, node.attrs, types);
  const llvm::StringRef op = node.op->name;
  if (op == "constant") return literal(*node.attrs.get_tensor("value"));
  if (op == "cast") return cast(argument(node, 0), call.operand(0).dtype, dtype);
  if (op == "copy") return argument(node, 0);
  if (op == "where") return formatv("{0} ? {1} : {2}", argument(node, 0), argument(node, 1), argument(node, 2)).str();
  if (op == "not") return "!" + argument(node, 0);
  if (op == "is_nan") return "isnan(" + argument(node, 0) + ")";
  if (op == "is_inf") return is_inf(call, argument(node, 0));
  if (op == "dropout") return dropout(node, call);
  if (op == "add_n") return sum(node);
  if (is_16_bit_float(dtype) && op == "gelu")
    return formatv("narrow_{1}({0})", argument(node, 0), is_tanh_form(call) ? "gelu_tanh" : "gelu").str();
  if (is_16_bit_float(dtype) && op == "gelu_grad")
    return formatv("{1} * narrow_{2}_slope({0})", argument(node, 0), argument(node, 1),
                   is_tanh_form(call) ? "gelu_tanh" : "gelu")
        .str();
  if (is_16_bit_float(dtype) && (op == "sin" || op == "cos"))
    return formatv("narrow_{0}({1})", op, argument(node, 0)).str();
  return apply(node, call);
}

std::string BodyStatements::sum(const Node& node) const {
  std::string terms = argument(node, 0);
  for (size_t i = 1; i < node.operands.size(); ++i) terms += " + " + argument(node, i);
  return terms;
}

std::string BodyStatements::dropout(const Node& node, const OpCall& call) const {
  const ElementDropout dropout = element_dropout(call.attrs);
  return formatv("draws{0}.keep(k, {1}, {2}u, {3})", stream_of(node), argument(node, 0), dropout.dropped,
                 float_literal(dropout.factor))
      .str();
}

// A call of the op's function, which stands before the kernel.
std::string BodyStatements::apply(const Node& node, const OpCall& call) {
  std::string name = node.op->name.str();
  double a = 0, b = 0;
  if (name == "gelu" && is_tanh_form(call)) name = "gelu_tanh";
  if (name == "gelu_grad" && is_tanh_form(call)) name = "gelu_tanh_grad";
  if (name == "mod" && call.get_int("fmod")) name = "fmod";
  if (name == "clip") a = call.attrs.get_float("min", -INFINITY), b = call.attrs.get_float("max", INFINITY);
  for (const FormulaParameters& each : parameters)
    if (each.op == name) a = call.get_float(each.a), b = call.get_float(each.b);
  const Formula& formula = *find_formula(name);
  define(functions_, formula);
  std::string arguments = argument(node, 0);
  for (size_t i = 1; i < node.operands.size(); ++i) arguments += ", " + argument(node, i);
  if (node.operands.size() == 1) arguments += ", " + float_literal(a) + ", " + float_literal(b);
  return "op_" + name + "(" + arguments + ")";
}

}  // namespace plimsoll
