#include "passes/rewrite/patterns.h"

// Log-softmax and negative log-likelihood become cross-entropy, which reads 16-bit logits without a cast: the op
// computes in f32 whatever it reads, so the cast only costs memory.

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

constinit const PassInfo pass_recover_losses{
    .name = "recover-losses",
    .summary = "recover cross-entropy from log-softmax and negative log-likelihood, on logits without a cast",
    .stage = Stage::Any,
    .keeps_result = true,
    .run = run,
};

}  // namespace plimsoll
