#include "passes/clean/simplify_rules.h"
#include "passes/rewrite/patterns.h"

// Replaces nodes that do nothing, or do in two steps what one can do. The rules stand in simplify_movement.cpp,
// simplify_lookups.cpp, simplify_pieces.cpp and simplify_arithmetic.cpp. Each looks at one node and at the nodes it
// reads. Operands are simplified before their readers, so one walk reaches every node in its final surroundings.

namespace plimsoll {
namespace {

using RuleTable = llvm::StringMap<llvm::SmallVector<SimplifyRule, 2>>;

RuleTable rule_table() {
  RuleTable rules;
  for (const auto& list : {movement_rules(), lookup_rules(), piece_rules(), arithmetic_rules()})
    for (const auto& [op, rule] : list) rules[op].push_back(rule);
  return rules;
}

// A broadcasting op repeats its operands itself, so it can read the operand of an expand.
int64_t bypass_expands(Graph& graph, NodeId id) {
  if (!graph.node(id).op->elementwise) return 0;
  int64_t bypassed = 0;
  for (size_t i = 0; i < graph.node(id).operands.size(); ++i) {
    const Node& node = graph.node(id);
    const Node* expand = producer_of(graph, node.operands[i], "expand");
    if (!expand) continue;
    llvm::SmallVector<const Type*, 4> types = operand_types(graph, node);
    types[i] = &graph.type(expand->operands[0]);
    if (try_infer(*node.op, node.attrs, types) != result_types(graph, node)) continue;  // some want equal shapes
    graph.set_operand(id, i, expand->operands[0]);
    ++bypassed;
  }
  return bypassed;
}

// A rule may put a node in place of this one that another rule likes: they are tried until none applies. A fresh value
// takes over the name; one that was there keeps its own.
int64_t apply_rules(Graph& graph, NodeId id, const RuleTable& rules) {
  int64_t applied = 0;
  while (id != NodeId::None) {
    auto rule = rules.find(graph.node(id).op->name);
    if (rule == rules.end()) break;
    const size_t slots = graph.node_slots();
    Builder builder = builder_at(graph, id);
    ValueId replacement = ValueId::None;
    for (size_t i = 0; i < rule->second.size() && replacement == ValueId::None; ++i)
      replacement = rule->second[i](builder, graph.node(id));
    if (replacement == ValueId::None) break;
    const bool is_fresh = graph.node_slots() > slots;
    const ValueId old = graph.node(id).results[0];
    if (is_fresh)
      replace_and_rename(graph, old, replacement);
    else
      graph.replace_uses(old, replacement);
    graph.erase_node(id);
    ++applied;
    id = is_fresh ? graph.value(replacement).producer : NodeId::None;
  }
  return applied;
}

Result<bool> run_simplify(Graph& graph, PassContext& context) {
  const RuleTable rules = rule_table();
  return apply_patterns(graph, context,
                        {{"", "expands bypassed", bypass_expands},
                         {"", "simplified", [&](Graph& g, NodeId id) { return apply_rules(g, id, rules); }}});
}

}  // namespace

constinit const PassInfo pass_simplify{
    .name = "simplify",
    .summary = "remove nodes that change nothing and merge chains of data movement",
    .run = run_simplify,
};

}  // namespace plimsoll
