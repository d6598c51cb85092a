#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"

// The importer puts dropout and batch norm into training mode, since plans train. Evaluation wants them back: dropout
// passes its operand on, batch norm reads the running statistics, and no state gets a next value. Random numbers that
// the model draws itself stay, and are the same in every call because their counter stands still.

namespace plimsoll {
namespace {

bool drop_dropout(Graph& graph, NodeId id) {
  graph.replace_uses(graph.node(id).results[0], graph.node(id).operands[0]);
  return true;
}

bool drop_attention_dropout(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.attrs.get_float("dropout", 0) == 0) return false;
  Attrs attrs = node.attrs;
  for (llvm::StringRef name : {"dropout", "id", "first_draw", "draws_per_rank", "draws_per_part", "drawn_heads"})
    attrs.erase(name);
  llvm::SmallVector<ValueId, 4> operands = node.operands;
  operands[node.op->operand("rng")] = ValueId::None;
  while (operands.back() == ValueId::None) operands.pop_back();
  const auto results = builder_at(graph, id).emit_all("attention", operands, attrs);
  for (size_t i = 0; i < results.size(); ++i) replace_and_rename(graph, graph.node(id).results[i], results[i]);
  return true;
}

// The state that a running_update of `statistic` continues, perhaps through the updates of earlier calls of the layer.
ValueId running_state(const Graph& graph, ValueId statistic) {
  for (NodeId user : graph.value(statistic).users) {
    const Node* update = &graph.node(user);
    while (update->op->name == "running_update") {
      const ValueId running = update->operands[0];
      if (graph.find_state(running)) return running;
      const NodeId producer = graph.value(running).producer;
      if (producer == NodeId::None) break;
      update = &graph.node(producer);
    }
  }
  return ValueId::None;
}

Status use_running_statistics(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const ValueId mean = running_state(graph, node.results[1]), var = running_state(graph, node.results[2]);
  if (mean == ValueId::None || var == ValueId::None)
    return model_error(model_name(graph, id) +
                       ": evaluation needs running statistics, and this batch norm has none among the model's weights");
  Builder b = builder_at(graph, id);
  const llvm::SmallVector<ValueId, 5> operands{node.operands[0], node.operands[1], node.operands[2], mean, var};
  const ValueId y = b.emit("batch_norm_inference", operands, node.attrs);
  replace_and_rename(graph, graph.node(id).results[0], y);
  return Status::success();
}

Result<bool> run_inference_mode(Graph& graph, PassContext& context) {
  bool changed = !graph.updates.empty();
  for (NodeId id : graph.order()) {
    const llvm::StringRef op = graph.node(id).op->name;
    if (op == "batch_norm") {
      if (Status s = use_running_statistics(graph, id)) return s;
      context.count("batch norms");
      changed = true;
    } else if (op == "dropout" ? drop_dropout(graph, id) : op == "attention" && drop_attention_dropout(graph, id)) {
      context.count("dropouts");
      changed = true;
    }
  }
  graph.updates.clear();
  return changed;
}

}  // namespace

constinit const PassInfo pass_inference_mode{
    .name = "inference-mode",
    .summary = "let dropout pass everything, batch norm use running statistics, and no state change",
    .stage = Stage::Forward,
    .keeps_result = false,
    .run = run_inference_mode,
};

}  // namespace plimsoll
