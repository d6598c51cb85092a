#include "passes/rewrite/patterns.h"

// The log of a softmax is log-softmax, which no rounding of a probability to 0 or 1 reaches. Log-softmax and negative
// log-likelihood become cross-entropy, which reads 16-bit logits without a cast: the op computes in f32 whatever it
// reads, so the cast only costs memory.

namespace plimsoll {
namespace {

bool try_log_softmax(Graph& graph, NodeId id) {
  const Node* softmax = producer_of(graph, operand_of(graph.node(id), "x"), "softmax");
  if (!softmax) return false;
  const ValueId x = operand_of(*softmax, "x");
  if (graph.type(x) != graph.type(graph.node(id).results[0])) return false;
  const ValueId log_probs = builder_at(graph, id).emit("log_softmax", {x}, {{"axis", softmax->attrs.get_int("axis")}});
  replace_and_rename(graph, graph.node(id).results[0], log_probs);
  return true;
}

bool try_join(Graph& graph, NodeId id) {
  const Node& nll = graph.node(id);
  const ValueId log_probs = operand_of(nll, "log_probs");
  const Node* log_softmax = producer_of(graph, log_probs, "log_softmax");
  if (!log_softmax || log_softmax->attrs.get_int("axis") != 1 || !has_one_reader(graph, log_probs)) return false;
  const auto operands = operands_with(nll, "log_probs", operand_of(*log_softmax, "x"));
  auto results = builder_at(graph, id).emit_all("cross_entropy", operands, nll.attrs);
  replace_and_rename(graph, nll.results[0], results[0]);
  if (nll.results.size() > 1) graph.replace_uses(nll.results[1], results[2]);
  return true;
}

bool try_drop_cast(Graph& graph, NodeId id) {
  const ValueId logits = operand_of(graph.node(id), "logits"), below = value_below(graph, logits, "cast");
  if (below == ValueId::None || graph.type(logits).dtype != DType::F32) return false;
  if (graph.type(below).dtype != DType::BF16 && graph.type(below).dtype != DType::F16) return false;
  graph.set_operand(id, graph.node(id).op->operand("logits"), below);
  return true;
}

Result<bool> run_recover_losses(Graph& graph, PassContext& context) {
  const bool joined = apply_patterns(
      graph, context, {{"log", "log_softmax", try_log_softmax}, {"nll_loss", "cross_entropy", try_join}});
  return apply_patterns(graph, context, {{"cross_entropy", "casts dropped", try_drop_cast}}) || joined;
}

}  // namespace

constinit const PassInfo pass_recover_losses{
    .name = "recover-losses",
    .summary = "recover log-softmax, and cross-entropy from it and negative log-likelihood, on logits without a cast",
    .run = run_recover_losses,
};

}  // namespace plimsoll
