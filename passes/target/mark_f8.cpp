#include "ir/adapter_names.h"
#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"
#include "passes/rewrite/quantised_weights.h"
#include "passes/target/precision_rules.h"

#include "llvm/ADT/STLExtras.h"

// Marks the linear layers whose products are to read 8-bit floats. Differentiation hands the mark on to the products of
// their gradients, and expand-f8 makes the codes once the whole step is known.
//
// Marked are layers with a parameter as weight that compute in 16 bits. Left as they are: the layer that makes the
// scores of a loss over classes, others behind which no layer follows, matrices of adapters, whose products are bound
// by memory, and what precision rules name. A rule for fp8 marks these as well.
//
// Nothing changes here but attributes, so it is right by itself.

namespace plimsoll {
namespace {

// The parameter that is read as it is, converted, moved or made of its codes; null otherwise.
const State* parameter_behind(const Graph& graph, ValueId value) {
  for (;;) {
    if (const State* state = graph.find_state(value)) return state->role == StateRole::Parameter ? state : nullptr;
    const NodeId producer = graph.value(value).producer;
    if (producer == NodeId::None) return nullptr;
    const Node& node = graph.node(producer);
    if (!node.op->only_moves() && !is_dequantize(node)) return nullptr;
    value = node.operands[0];
  }
}

// Values from which another layer is reached.
class Followed {
 public:
  explicit Followed(const Graph& graph) : graph_(graph), followed_(graph.value_count()) {
    const std::vector<NodeId> order = graph.order();
    for (NodeId id : llvm::reverse(order)) {
      const Node& node = graph.node(id);
      const bool reaches = is_layer(node) || llvm::any_of(node.results, [&](ValueId y) { return (*this)[y]; });
      if (!reaches) continue;
      for (ValueId operand : node.operands)
        if (operand != ValueId::None) followed_[index_of(operand)] = true;
    }
  }

  bool operator[](ValueId value) const { return followed_[index_of(value)]; }

 private:
  bool is_layer(const Node& node) const {
    return node.op->precision == Precision::Low && llvm::any_of(node.operands, [&](ValueId operand) {
             return operand != ValueId::None && parameter_behind(graph_, operand);
           });
  }

  const Graph& graph_;
  std::vector<bool> followed_;
};

// Why the layer's products stay in the type that they have; empty where they do not.
std::string why_not(const Graph& graph, const Node& node, const Followed& followed,
                    llvm::ArrayRef<PrecisionRule> rules) {
  const State* weight = parameter_behind(graph, operand_of(node, "w"));
  if (!weight) return "no parameter is their weight";
  const DType dtype = graph.type(operand_of(node, "x")).dtype;
  const PrecisionRule* rule = find_rule(rules, graph, node);
  if (rule && rule->dtype != DType::F8E4M3) return "rule: " + rule->text;
  if (dtype != DType::BF16 && dtype != DType::F16) return "they compute in " + dtype_name(dtype).str();
  if (rule) return "";
  if (parse_adapter_weight(weight->init.source)) return "adapters";
  const ValueId y = node.results[0];
  return makes_scores(graph, y) || !followed[y] ? "no layer follows" : "";
}

Result<bool> run_mark_f8(Graph& graph, PassContext& context) {
  Result<std::vector<PrecisionRule>> rules = parse_precision_rules(context.text("rules"));
  if (!rules) return rules.takeError();
  const DType gradients = f8_gradients(*rules);
  const F8Scales scales = f8_scales(*rules);
  const Followed followed(graph);
  std::map<std::string, int64_t> left;
  int64_t marked = 0;
  for (NodeId id : graph.order()) {
    if (graph.node(id).op->name != "linear") continue;
    if (const std::string why = why_not(graph, graph.node(id), followed, *rules); !why.empty()) {
      ++left[why];
      continue;
    }
    Attrs& attrs = graph.node(id).attrs;
    attrs.set("f8", DType::F8E4M3), attrs.set("f8_grad", gradients);
    if (scales != F8Scales::Tensor) attrs.set("f8_scales", f8_scales_name(scales).str());
    ++marked;
  }
  if (marked == 0)
    return model_error("precision fp8: no hidden layer is linear, so no product can have 8-bit operands");
  context.count("layers", marked);
  const auto layers = [](int64_t count) { return std::to_string(count) + (count == 1 ? " layer" : " layers"); };
  context.decide("linear layers", "fp8",
                 layers(marked) + ": operands f8e4m3, gradients of results " + dtype_name(gradients).str() +
                     (scales == F8Scales::Tensor ? "" : ", scales of " + f8_scales_name(scales).str()));
  for (const auto& [why, count] : left) context.decide("linear layers", "not fp8", layers(count) + ": " + why);
  return true;
}

constexpr PassOption options[] = {
    {"rules", "", "precision rules (passes/target/precision_rules.h), separated by ';'"},
};

}  // namespace

constinit const PassInfo pass_mark_f8{
    .name = "mark-f8",
    .summary = "choose the linear layers whose products read 8-bit floats",
    .stage = Stage::Forward,
    .options = options,
    .run = run_mark_f8,
};

}  // namespace plimsoll
