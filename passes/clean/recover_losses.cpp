#include "passes/rewrite/patterns.h"

// Cross-entropy out of log-softmax and negative log-likelihood, and straight on 16-bit logits:
// the op computes in f32 whatever it reads, so a cast of the logits only costs memory.

namespace plimsoll {
namespace {

bool try_join(Graph& graph, NodeId id) {
  const Node& nll = graph.node(id);
  const Node* log_softmax = producer_of(graph, nll.operands[0], "log_softmax");
  if (!log_softmax || log_softmax->attrs.get_int("axis") != 1 || !has_one_reader(graph, nll.operands[0])) return false;
  llvm::SmallVector<ValueId, 3> operands(nll.operands.begin(), nll.operands.end());
  operands[0] = log_softmax->operands[0];
  auto results = builder_at(graph, id).emit_all("cross_entropy", operands, nll.attrs);
  replace_and_rename(graph, nll.results[0], results[0]);
  if (nll.results.size() > 1) graph.replace_uses(nll.results[1], results[2]);
  return true;
}

bool try_drop_cast(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const Node* cast = producer_of(graph, node.operands[0], "cast");
  if (!cast || graph.type(node.operands[0]).dtype != DType::F32) return false;
  DType from = graph.type(cast->operands[0]).dtype;
  if (from != DType::BF16 && from != DType::F16) return false;
  graph.set_operand(id, 0, cast->operands[0]);
  return true;
}

Result<bool> run(Graph& graph, PassContext& context) {
  const bool joined = apply_patterns(graph, context, {{"nll_loss", "cross_entropy", try_join}});
  return apply_patterns(graph, context, {{"cross_entropy", "casts dropped", try_drop_cast}}) || joined;
}

}  // namespace

extern const PassInfo pass_recover_losses;
constinit const PassInfo pass_recover_losses{
    .name = "recover-losses",
    .summary = "cross-entropy out of log-softmax and negative log-likelihood, on logits as they are",
    .stage = Stage::Any,
    .keeps_result = true,
    .run = run,
};

}  // namespace plimsoll
