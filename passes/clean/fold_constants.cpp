#include "ir/fold.h"
#include "passes/pass/pass.h"

// Replaces every node that reads only constants by its value. Weights are states, so nothing that depends on them is
// constant. dce removes operands that nothing reads any more.

namespace plimsoll {
namespace {

constexpr PassOption options[] = {
    {"evaluate", FoldLimits{}.evaluated_elements, "max elements read and written by one evaluated node"},
    {"keep", FoldLimits{}.kept_elements, "max elements stored of one result"},
    {"dense", FoldLimits{}.dense_elements, "results up to this many elements are stored without expand"},
};

Result<bool> run_fold_constants(Graph& graph, PassContext& context) {
  const FoldLimits limits{context.number("evaluate"), context.number("keep"), context.number("dense")};
  int64_t folded = 0;
  for (NodeId id = graph.first_node(), next; id != NodeId::None; id = next) {
    next = graph.next_node(id);
    Result<llvm::SmallVector<ValueId, 2>> values = fold_node(graph, id, limits);
    if (!values) return values.takeError();
    folded += !values->empty();
  }
  context.count("folded", folded);
  return folded > 0;
}

}  // namespace

constinit const PassInfo pass_fold_constants{
    .name = "fold-constants",
    .summary = "compute what depends on constants alone",
    .options = options,
    .run = run_fold_constants,
};

}  // namespace plimsoll
