#include "passes/rewrite/patterns.h"

// Exporters write GELU and SiLU as up to eight ops. As one op they keep one tensor for backward and read memory once in
// either direction. Log-sigmoid, of which losses of logits are made, is exported as a log of a sigmoid: -inf, with a
// gradient that is no number, where the sigmoid is 0, and 0 where it rounds to 1.

#include <cmath>

namespace plimsoll {
namespace {

// Gives f for 1 + f, and None for another value.
ValueId one_plus(const Graph& graph, ValueId value) {
  const Node* add = producer_of(graph, value, "add");
  if (!add) return ValueId::None;
  std::optional<WithNumber> parts = with_number(graph, *add);
  return parts && parts->number == 1 ? parts->value : ValueId::None;
}

// Strips multiplications and divisions by numbers; gives the value below them and their factor.
WithNumber strip_factors(const Graph& graph, ValueId value) {
  double factor = 1;
  for (;;) {
    const Node* mul = producer_of(graph, value, "mul");
    const Node* div = producer_of(graph, value, "div");
    if (mul) {
      std::optional<WithNumber> parts = with_number(graph, *mul);
      if (!parts) break;
      factor *= parts->number;
      value = parts->value;
    } else if (div) {
      std::optional<double> number = splat_value(graph, operand_of(*div, "b"));
      if (!number) break;
      factor /= *number;
      value = operand_of(*div, "a");
    } else {
      break;
    }
  }
  return {value, factor};
}

bool close(double a, double b) { return std::fabs(a - b) <= 1e-3 * std::fabs(b); }

// x^3 is written as pow(x, 3) or as multiplications.
bool is_cube(const Graph& graph, ValueId value, ValueId x) {
  if (const Node* pow = producer_of(graph, value, "pow"))
    return operand_of(*pow, "a") == x && is_splat(graph, operand_of(*pow, "b"), 3);
  const Node* mul = producer_of(graph, value, "mul");
  return mul && llvm::is_contained(mul->operands, x) && is_square_of(graph, other_operand(*mul, x), x);
}

// The factors of a product of up to three values; `number` is the product of its constants.
struct Product {
  llvm::SmallVector<ValueId, 3> values;
  double number = 1;
};

void collect_factors(const Graph& graph, ValueId value, bool may_open, Product& product) {
  if (std::optional<double> number = splat_value(graph, value)) {
    product.number *= *number;
    return;
  }
  const Node* mul = producer_of(graph, value, "mul");
  if (mul && may_open) {
    for (ValueId operand : mul->operands) collect_factors(graph, operand, has_one_reader(graph, operand), product);
    return;
  }
  product.values.push_back(value);
}

// BLOOM writes the argument of tanh as sqrt(2/pi) x (1 + 0.044715 x x).
bool is_factored_argument(const Graph& graph, ValueId value, ValueId x) {
  Product outer;
  collect_factors(graph, value, true, outer);
  if (outer.values.size() != 2 || !close(outer.number, std::sqrt(2 / M_PI))) return false;
  if (outer.values[0] != x && outer.values[1] != x) return false;
  ValueId square = one_plus(graph, outer.values[outer.values[0] == x ? 1 : 0]);
  if (square == ValueId::None) return false;
  Product inner;
  collect_factors(graph, square, true, inner);
  return inner.values.size() == 2 && inner.values[0] == x && inner.values[1] == x && close(inner.number, 0.044715);
}

// "none" for 1 + erf(x / sqrt 2), "tanh" for 1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)), else empty.
llvm::StringRef gelu_gate(const Graph& graph, ValueId gate, ValueId x) {
  ValueId inner = one_plus(graph, gate);
  if (inner == ValueId::None) return "";
  if (ValueId below = value_below(graph, inner, "erf"); below != ValueId::None) {
    WithNumber argument = strip_factors(graph, below);
    return argument.value == x && close(argument.number, M_SQRT1_2) ? "none" : "";
  }
  ValueId below = value_below(graph, inner, "tanh");
  if (below == ValueId::None) return "";
  if (is_factored_argument(graph, below, x)) return "tanh";
  WithNumber argument = strip_factors(graph, below);
  const Node* sum = producer_of(graph, argument.value, "add");
  if (!sum || !close(argument.number, std::sqrt(2 / M_PI)) || !llvm::is_contained(sum->operands, x)) return "";
  WithNumber cubic = strip_factors(graph, other_operand(*sum, x));
  return close(cubic.number, 0.044715) && is_cube(graph, cubic.value, x) ? "tanh" : "";
}

bool try_gelu(Graph& graph, NodeId id) {
  Product product;
  collect_factors(graph, graph.node(id).results[0], true, product);
  if (product.values.size() != 2 || !close(product.number, 0.5)) return false;
  for (int i = 0; i < 2; ++i) {
    ValueId x = product.values[i], gate = product.values[1 - i];
    llvm::StringRef form = gelu_gate(graph, gate, x);
    if (form.empty() || graph.type(x) != graph.type(graph.node(id).results[0])) continue;
    ValueId gelu = builder_at(graph, id).emit("gelu", {x}, {{"approximate", form.str()}});
    replace_and_rename(graph, graph.node(id).results[0], gelu);
    return true;
  }
  return false;
}

bool try_silu(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  for (size_t i = 0; i < 2; ++i) {
    if (value_below(graph, node.operands[1 - i], "sigmoid") != node.operands[i]) continue;
    ValueId silu = builder_at(graph, id).emit("silu", {node.operands[i]});
    replace_and_rename(graph, graph.node(id).results[0], silu);
    return true;
  }
  return false;
}

// Gives f for 1 - f, also where it is written as 1 + -f, and None for another value.
ValueId one_minus(const Graph& graph, ValueId value) {
  if (const Node* sub = producer_of(graph, value, "sub"))
    return is_splat(graph, operand_of(*sub, "a"), 1) ? operand_of(*sub, "b") : ValueId::None;
  const ValueId negative = one_plus(graph, value);
  return negative == ValueId::None ? negative : value_below(graph, negative, "neg");
}

// log(sigmoid(x)), or log(1 - sigmoid(x)), the same of -x.
bool try_log_sigmoid(Graph& graph, NodeId id) {
  const ValueId inside = operand_of(graph.node(id), "x"), complement = one_minus(graph, inside);
  const bool is_complement = complement != ValueId::None;
  ValueId x = value_below(graph, is_complement ? complement : inside, "sigmoid");
  if (x == ValueId::None || graph.type(x) != graph.type(graph.node(id).results[0])) return false;
  Builder b = builder_at(graph, id);
  if (is_complement) x = b.emit("neg", {x});
  replace_and_rename(graph, graph.node(id).results[0], b.emit("log_sigmoid", {x}));
  return true;
}

Result<bool> run_recover_activations(Graph& graph, PassContext& context) {
  return apply_patterns(
      graph, context, {{"mul", "gelu", try_gelu}, {"mul", "silu", try_silu}, {"log", "log_sigmoid", try_log_sigmoid}});
}

}  // namespace

constinit const PassInfo pass_recover_activations{
    .name = "recover-activations",
    .summary = "recover GELU (erf and tanh forms), SiLU and log-sigmoid from their parts",
    .run = run_recover_activations,
};

}  // namespace plimsoll
