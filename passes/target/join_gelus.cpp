#include "ir/support/units.h"
#include "passes/analysis/cost_model.h"
#include "passes/analysis/plan_draft.h"
#include "passes/rewrite/patterns.h"

// The planning step join-gelus lets a product write the gelu of its result beside it, where backward reads both and a
// kernel does the two in less time: the gelu alone would read what the product has just written.
//
// It is for plans without remats: one that makes a gelu again would make its product again, too.

namespace plimsoll {
namespace {

// The linear layer of 16-bit floats whose result the gelu reads beside others; None where there is no such layer.
NodeId product_before(const Graph& graph, const Node& gelu) {
  const ValueId h = gelu.operands[0];
  const Node* linear = producer_of(graph, h, "linear");
  if (!linear || linear->phase != gelu.phase || has_one_reader(graph, h)) return NodeId::None;
  if (!is_16_bit_float(graph.type(h).dtype) || linear->attrs.has("f8")) return NodeId::None;
  return operand_of(*linear, "addend") == ValueId::None ? graph.value(h).producer : NodeId::None;
}

class Joiner {
 public:
  explicit Joiner(PlanDraft& draft) : draft_(draft) {}

  bool try_gelu(Graph& graph, NodeId id) {
    const Node gelu = graph.node(id);
    const NodeId product = product_before(graph, gelu);
    if (product == NodeId::None) return false;
    const Node linear = graph.node(product);
    Attrs attrs = gelu.attrs;
    if (linear.attrs.has("transpose_w")) attrs.set("transpose_w", linear.attrs.get_int("transpose_w"));
    const std::vector<ValueId> operands{operand_of(linear, "x"), operand_of(linear, "w"), operand_of(linear, "bias")};
    Builder b = builder_at(graph, product);
    const auto made = b.emit_all("linear_gelu", llvm::ArrayRef(operands).drop_back(operands.back() == ValueId::None),
                                 std::move(attrs));
    const NodeId both = graph.value(made[0]).producer;
    const double saved_us = us(graph, linear) + us(graph, gelu) - us(graph, graph.node(both));
    if (graph.type(made[0]) != graph.type(linear.results[0]) || saved_us <= 0) {
      graph.erase_node(both);
      return false;
    }
    replace_and_rename(graph, linear.results[0], made[0]);
    replace_and_rename(graph, gelu.results[0], made[1]);
    graph.erase_node(id);
    graph.erase_node(product);
    saved_us_ += saved_us;
    return true;
  }

  double saved_us() const { return saved_us_; }

 private:
  double us(const Graph& graph, const Node& node) const {
    return predicted_us(graph, node, chosen_kernel(graph, node, *draft_.catalog), draft_.device);
  }

  PlanDraft& draft_;
  double saved_us_ = 0;
};

Result<bool> run(PlanDraft& draft, size_t function, PassContext& context) {
  Joiner joiner(draft);
  const bool any =
      apply_patterns(draft.program.functions[function], context,
                     {{"gelu", "gelus", [&](Graph& graph, NodeId id) { return joiner.try_gelu(graph, id); }}});
  if (!any) return false;
  draft.functions[function] = {};
  const int64_t gelus = context.counters["gelus"];
  context.decide("gelus", std::to_string(gelus) + (gelus == 1 ? " is" : " are") + " written by their products",
                 "saves " + format_us(joiner.saved_us()));
  return true;
}

}  // namespace

constinit const PassInfo pass_join_gelus{
    .name = "join-gelus",
    .summary = "let products write the gelus of their results beside them, where backward reads both",
    .plan = run,
};

}  // namespace plimsoll
