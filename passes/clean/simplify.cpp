#include "ir/builder.h"
#include "passes/clean/simplify_rules.h"
#include "passes/pass/pass.h"

// Replaces nodes that do nothing, or do in two steps what one can do. The rules stand in
// simplify_movement.cpp, simplify_lookups.cpp and simplify_arithmetic.cpp; each looks at one node and at what it
// reads, never at its readers. Operands are simplified before their readers, so one walk reaches every node in its
// final surroundings.

namespace plimsoll {
namespace {

using RuleTable = llvm::StringMap<SimplifyRule>;

RuleTable rule_table() {
  RuleTable rules;
  for (const auto& list : {movement_rules(), lookup_rules(), arithmetic_rules()})
    for (const auto& [op, rule] : list) rules[op] = rule;
  return rules;
}

// A broadcasting op repeats its operands itself: it can read what an expand reads.
int64_t bypass_expands(Graph& graph, NodeId id) {
  if (!graph.node(id).op->elementwise) return 0;
  int64_t bypassed = 0;
  for (size_t i = 0; i < graph.node(id).operands.size(); ++i) {
    const Node& node = graph.node(id);
    const Node* expand = producer_of(graph, node.operands[i], "expand");
    if (!expand) continue;
    llvm::SmallVector<const Type*, 4> types = operand_types(graph, node);
    types[i] = &graph.type(expand->operands[0]);
    Result<Types> results = node.op->infer(OpCall(node.attrs, types));
    if (!results) {
      llvm::consumeError(results.takeError());  // an op that wants equal shapes
      continue;
    }
    if (*results != result_types(graph, node)) continue;
    graph.set_operand(id, i, expand->operands[0]);
    ++bypassed;
  }
  return bypassed;
}

// A fresh value takes over the name; one that was there keeps its own.
void put_in_place(Graph& graph, NodeId id, ValueId replacement, bool is_fresh) {
  ValueId old = graph.node(id).results[0];
  graph.replace_uses(old, replacement);
  graph.erase_node(id);
  if (is_fresh) graph.rename(replacement, std::string(graph.value(old).name));
}

Result<bool> run(Graph& graph, PassContext& context) {
  const RuleTable rules = rule_table();
  bool changed = false;
  for (NodeId id = graph.first_node(), next; id != NodeId::None; id = next) {
    next = graph.next_node(id);
    if (int64_t expands = bypass_expands(graph, id)) {
      context.count("expands bypassed", expands);
      changed = true;
    }
    // A rule may put a node in place of this one that another rule likes: try until none does.
    for (NodeId at = id; at != NodeId::None;) {
      auto rule = rules.find(graph.node(at).op->name);
      if (rule == rules.end()) break;
      const Node node = graph.node(at);  // a copy: rules add nodes
      Builder builder(graph, at);
      builder.origin = node.origin;
      builder.phase = node.phase;
      size_t slots = graph.node_slots();
      ValueId replacement = rule->second(builder, node);
      if (replacement == ValueId::None) break;
      bool is_fresh = graph.node_slots() > slots;
      put_in_place(graph, at, replacement, is_fresh);
      context.count(rule->first());
      changed = true;
      at = is_fresh ? graph.value(replacement).producer : NodeId::None;
    }
  }
  return changed;
}

}  // namespace

const Node* producer_of(const Graph& graph, ValueId value, llvm::StringRef op) {
  if (value == ValueId::None || graph.value(value).producer == NodeId::None) return nullptr;
  const Node& node = graph.node(graph.value(value).producer);
  return node.op->name == op ? &node : nullptr;
}

extern const PassInfo pass_simplify;
constinit const PassInfo pass_simplify{
    .name = "simplify",
    .summary = "remove nodes that change nothing and merge chains of data movement",
    .stage = Stage::Any,
    .keeps_result = true,
    .run = run,
};

}  // namespace plimsoll
