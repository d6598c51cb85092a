#include "passes/rewrite/patterns.h"

// A layer with DoRA (Liu et al. 2024) as PEFT adds it to the frozen result, y + (g - 1) (y - bias) + g c s, becomes
// g (W x + c s) + bias, which keeps one value of the layer's size for the gradient of g in place of two. With dropout
// the frozen layer is applied to another x there, so the sum stays. In both, the number s moves to the matrix B, which
// is smaller than results. g is the result of dora_scale, c the linear layer with B. Models of 16 bits, and those with
// f32 adapters over a base of 16, have casts between all of these. g is f32 then, and what it multiplies is rounded
// behind it: a factor near 1 has no room for its changes in 16 bits.

namespace plimsoll {
namespace {

// One of the two summands: factor * value * number, or with the factor less one.
struct Term {
  ValueId factor = ValueId::None, value = ValueId::None;
  double number = 1;
  bool less_one = false, in_place = true;  // is the product of dora_scale's result as it is?
};

ValueId past_casts(const Graph& graph, ValueId value) {
  for (;;) {
    const ValueId below = value_below(graph, value, "cast");
    if (below == ValueId::None || !is_float(graph.type(below).dtype)) return value;
    value = below;
  }
}

// Finds a factor behind casts and reshapes. The latter add leading dims of 1.
void match_factor(const Graph& graph, ValueId value, Term& term) {
  for (;;) {
    ValueId below = past_casts(graph, value);
    if (below == value) below = value_below(graph, value, "reshape");
    if (below != ValueId::None) {
      term.in_place = false;
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
  while (const Node* mul = producer_of(graph, past_casts(graph, product), "mul")) {
    if (const auto scaled = with_number(graph, *mul)) {
      number *= scaled->number;
      product = scaled->value;
      continue;
    }
    for (size_t i = 0; i < 2; ++i) {
      Term term{.value = past_casts(graph, mul->operands[1 - i]), .number = number};
      match_factor(graph, mul->operands[i], term);
      if (term.factor != ValueId::None) return term;
    }
    return std::nullopt;
  }
  return std::nullopt;
}

// The layer's two summands beside the frozen result: of the frozen layer, and of the adapter.
std::optional<std::pair<Term, Term>> match_change(const Graph& graph, ValueId change) {
  const Node* sum = producer_of(graph, past_casts(graph, change), "add");
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
  return less && past_casts(graph, less->operands[0]) == y &&
         past_casts(graph, past_reshapes(graph, less->operands[1])) == past_casts(graph, layer.operands[2]);
}

class Rewriter {
 public:
  Rewriter(Graph& graph, NodeId sum, ValueId y, const Term& frozen, const Term& own)
      : graph_(graph),
        sum_(sum),
        type_(graph.type(graph.node(sum).results[0])),
        y_(y),
        frozen_(frozen),
        own_(own),
        b_(builder_at(graph, sum)) {}

  bool rewrite() {
    const Node* layer = producer_of(graph_, y_, "linear");
    const Node* second = plain_linear(graph_, own_.value);
    if (!layer || !second || has_operand(*layer, 3)) return false;
    if (!graph_.find_state(past_casts(graph_, second->operands[1]))) return false;
    for (ValueId each : {y_, frozen_.value, own_.value})
      if (graph_.type(each).shape != type_.shape) return false;
    // A frozen result of more bits than the adapter's keeps them.
    if (dtype_bytes(graph_.type(y_).dtype) > dtype_bytes(graph_.type(own_.value).dtype)) return false;
    const Node* again = plain_linear(graph_, frozen_.value);
    const bool same_layer = again && same_number(again->operands[1], layer->operands[1]) &&
                            again->attrs == layer->attrs && frozen_.value != y_;
    if (is_without_bias(graph_, frozen_.value, y_) ||
        (same_layer && same_number(again->operands[0], layer->operands[0])))
      return replace(multiply_all(*layer, *second));
    const bool is_simple = own_.number == 1 && own_.in_place && frozen_.in_place;
    return same_layer && !is_simple && replace(keep_sum(*second));
  }

 private:
  // Perhaps rounded to another type.
  bool same_number(ValueId one, ValueId other) const { return past_casts(graph_, one) == past_casts(graph_, other); }

  bool replace(ValueId adapted) {
    replace_and_rename(graph_, graph_.node(sum_).results[0], adapted);
    return true;
  }

  ValueId multiply_all(const Node& layer, const Node& second) {
    const ValueId x = layer.operands[0], w = layer.operands[1], h = second.operands[0];
    const ValueId bias = has_operand(layer, 2) ? layer.operands[2] : ValueId::None;
    const Attrs attrs = layer.attrs, own = second.attrs;
    const ValueId base = bias == ValueId::None ? y_ : b_.emit("linear", {x, w}, attrs);
    const ValueId addend = b_.cast(base, graph_.type(own_.value).dtype);
    const ValueId all = b_.emit("linear", {h, scaled(second.operands[1]), ValueId::None, addend}, own);
    const ValueId adapted = times(all, own_.factor);
    return bias == ValueId::None ? adapted : b_.emit("add", {adapted, b_.cast(bias, type_.dtype)});
  }

  ValueId keep_sum(const Node& second) {
    const ValueId h = second.operands[0], matrix = second.operands[1];
    const Attrs own = second.attrs;
    const ValueId change = b_.emit("linear", {h, scaled(matrix)}, own),
                  less = b_.emit("sub", {own_.factor, b_.scalar(1, graph_.type(own_.factor).dtype)}),
                  frozen = times(frozen_.value, less);
    const ValueId changes = b_.emit("add", {frozen, times(change, own_.factor)});
    return b_.emit("add", {b_.cast(y_, type_.dtype), changes});
  }

  // In the factor's type, rounded to that of the sum.
  ValueId times(ValueId value, ValueId factor) {
    return b_.cast(b_.emit("mul", {b_.cast(value, graph_.type(factor).dtype), factor}), type_.dtype);
  }

  // Before it is rounded for the product.
  ValueId scaled(ValueId matrix) {
    if (own_.number == 1) return matrix;
    const ValueId state = past_casts(graph_, matrix);
    return b_.cast(b_.emit("mul", {state, b_.scalar(own_.number, graph_.type(state).dtype)}),
                   graph_.type(matrix).dtype);
  }

  Graph& graph_;
  NodeId sum_;
  Type type_;  // of the sum
  ValueId y_;
  Term frozen_, own_;
  Builder b_;
};

bool try_dora(Graph& graph, NodeId id) {
  for (size_t i = 0; i < 2; ++i) {
    const ValueId y = past_casts(graph, graph.node(id).operands[i]), change = graph.node(id).operands[1 - i];
    const auto terms = match_change(graph, change);
    if (terms && Rewriter(graph, id, y, terms->first, terms->second).rewrite()) return true;
  }
  return false;
}

Result<bool> run_recover_dora(Graph& graph, PassContext& context) {
  return apply_patterns(graph, context, {{"add", "layers", try_dora}});
}

}  // namespace

constinit const PassInfo pass_recover_dora{
    .name = "recover-dora",
    .summary = "multiply results of layers with adapters by DoRA's factor once, before biases",
    .run = run_recover_dora,
};

}  // namespace plimsoll
