#include "passes/rewrite/patterns.h"

// A layer with DoRA (Liu et al. 2024) as PEFT adds it to the frozen result, y + (g - 1) (y - bias) + g c s, becomes
// g (W x + c s) + bias, which keeps one value of the layer's size for the gradient of g in place of two. With dropout
// the frozen layer is applied to another x there, so the sum stays. In both, the number s moves to the matrix B, which
// is smaller than results. g is the result of dora_scale, c the linear layer with B.

namespace plimsoll {
namespace {

// One of the two summands: factor * value * number, or with the factor less one.
struct Term {
  ValueId factor = ValueId::None, value = ValueId::None;
  double number = 1;
  bool less_one = false, reshaped = false;
};

// Finds a factor behind reshapes. They add leading dims of 1.
void match_factor(const Graph& graph, ValueId value, Term& term) {
  for (;;) {
    if (const ValueId below = value_below(graph, value, "reshape"); below != ValueId::None) {
      term.reshaped = true;
      value = below;
      continue;
    }
    const Node* less = producer_of(graph, value, "sub");
    if (!less || term.less_one || !is_splat(graph, less->operands[1], 1, 0)) break;
    term.less_one = true;
    value = less->operands[0];
  }
  const Node* scale = producer_of(graph, value, "dora_scale");
  if (scale && scale->results[0] == value) term.factor = value;
}

std::optional<Term> match_term(const Graph& graph, ValueId product) {
  double number = 1;
  while (const Node* mul = producer_of(graph, product, "mul")) {
    if (const auto scaled = with_number(graph, *mul)) {
      number *= scaled->number;
      product = scaled->value;
      continue;
    }
    for (size_t i = 0; i < 2; ++i) {
      Term term{.value = mul->operands[1 - i], .number = number};
      match_factor(graph, mul->operands[i], term);
      if (term.factor != ValueId::None) return term;
    }
    return std::nullopt;
  }
  return std::nullopt;
}

// The layer's two summands beside the frozen result: of the frozen layer, and of the adapter.
std::optional<std::pair<Term, Term>> match_change(const Graph& graph, ValueId change) {
  const Node* sum = producer_of(graph, change, "add");
  if (!sum) return std::nullopt;
  std::optional<Term> frozen = match_term(graph, sum->operands[0]), own = match_term(graph, sum->operands[1]);
  if (!frozen || !own || frozen->factor != own->factor || frozen->less_one == own->less_one) return std::nullopt;
  if (!frozen->less_one) std::swap(frozen, own);
  if (frozen->number != 1) return std::nullopt;
  return std::make_pair(*frozen, *own);
}

bool has_operand(const Node& node, size_t i) { return node.operands.size() > i && node.operands[i] != ValueId::None; }

// A linear layer without a bias and an addend.
const Node* plain_linear(const Graph& graph, ValueId value) {
  const Node* linear = producer_of(graph, value, "linear");
  return linear && !has_operand(*linear, 2) && !has_operand(*linear, 3) ? linear : nullptr;
}

// Is the value the frozen layer's result without its bias?
bool is_without_bias(const Graph& graph, ValueId value, ValueId y) {
  const Node& layer = graph.node(graph.value(y).producer);
  if (!has_operand(layer, 2)) return value == y;
  const Node* less = producer_of(graph, value, "sub");
  return less && less->operands[0] == y && past_reshapes(graph, less->operands[1]) == layer.operands[2];
}

class Rewriter {
 public:
  Rewriter(Graph& graph, NodeId sum, ValueId y, const Term& frozen, const Term& own)
      : graph_(graph), sum_(sum), y_(y), frozen_(frozen), own_(own), b_(builder_at(graph, sum)) {}

  bool rewrite() {
    const Node* layer = producer_of(graph_, y_, "linear");
    const Node* second = plain_linear(graph_, own_.value);
    if (!layer || !second || has_operand(*layer, 3) || !graph_.find_state(second->operands[1])) return false;
    const Type& type = graph_.type(y_);
    for (ValueId each : {graph_.node(sum_).results[0], frozen_.value, own_.value})
      if (graph_.type(each) != type) return false;
    if (graph_.type(own_.factor).dtype != type.dtype) return false;
    const Node* again = plain_linear(graph_, frozen_.value);
    const bool same_layer =
        again && again->operands[1] == layer->operands[1] && again->attrs == layer->attrs && frozen_.value != y_;
    if (is_without_bias(graph_, frozen_.value, y_) || (same_layer && again->operands[0] == layer->operands[0]))
      return replace(multiply_all(*layer, *second));
    const bool is_simple = own_.number == 1 && !own_.reshaped && !frozen_.reshaped;
    return same_layer && !is_simple && replace(keep_sum(*second));
  }

 private:
  bool replace(ValueId adapted) {
    replace_and_rename(graph_, graph_.node(sum_).results[0], adapted);
    return true;
  }

  ValueId multiply_all(const Node& layer, const Node& second) {
    const ValueId x = layer.operands[0], w = layer.operands[1], h = second.operands[0];
    const ValueId bias = has_operand(layer, 2) ? layer.operands[2] : ValueId::None;
    const Attrs attrs = layer.attrs, own = second.attrs;
    const ValueId base = bias == ValueId::None ? y_ : b_.emit("linear", {x, w}, attrs);
    const ValueId all = b_.emit("linear", {h, scaled(second.operands[1]), ValueId::None, base}, own);
    const ValueId adapted = b_.emit("mul", {all, own_.factor});
    return bias == ValueId::None ? adapted : b_.emit("add", {adapted, bias});
  }

  ValueId keep_sum(const Node& second) {
    const ValueId h = second.operands[0], matrix = second.operands[1];
    const Attrs own = second.attrs;
    const ValueId change = b_.emit("linear", {h, scaled(matrix)}, own),
                  less = b_.emit("sub", {own_.factor, b_.scalar(1, graph_.type(own_.factor).dtype)}),
                  frozen = b_.emit("mul", {frozen_.value, less});
    return b_.emit("add", {y_, b_.emit("add", {frozen, b_.emit("mul", {change, own_.factor})})});
  }

  ValueId scaled(ValueId matrix) {
    if (own_.number == 1) return matrix;
    return b_.emit("mul", {matrix, b_.scalar(own_.number, graph_.type(matrix).dtype)});
  }

  Graph& graph_;
  NodeId sum_;
  ValueId y_;
  Term frozen_, own_;
  Builder b_;
};

bool try_dora(Graph& graph, NodeId id) {
  for (size_t i = 0; i < 2; ++i) {
    const ValueId y = graph.node(id).operands[i], change = graph.node(id).operands[1 - i];
    const auto terms = match_change(graph, change);
    if (terms && Rewriter(graph, id, y, terms->first, terms->second).rewrite()) return true;
  }
  return false;
}

Result<bool> run(Graph& graph, PassContext& context) {
  return apply_patterns(graph, context, {{"add", "layers", try_dora}});
}

}  // namespace

constinit const PassInfo pass_recover_dora{
    .name = "recover-dora",
    .summary = "multiply results of layers with adapters by DoRA's factor once, before biases",
    .run = run,
};

}  // namespace plimsoll
