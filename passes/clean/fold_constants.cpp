#include "ir/fold.h"
#include "passes/pass/pass.h"

// Replaces every node that reads only constants by its value. What a model computes from its weights is not
// constant: weights are states. Operands that nothing reads any more are left to dce.

namespace plimsoll {
namespace {

constexpr PassOption options[] = {
    {"evaluate", "most elements read and written by one evaluated node (default 64 Mi)"},
    {"keep", "most elements stored of one result (default 16 Mi)"},
    {"dense", "results up to this many elements are stored without expand (default 1024)"},
};

Result<bool> run(Graph& graph, PassContext& context) {
  FoldLimits limits;
  for (auto [name, limit] : {std::pair("evaluate", &limits.evaluated_elements),
                             std::pair("keep", &limits.kept_elements), std::pair("dense", &limits.dense_elements)}) {
    Result<int64_t> value = context.int_option(name, *limit);
    if (!value) return value.takeError();
    *limit = *value;
  }
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

extern const PassInfo pass_fold_constants;
constinit const PassInfo pass_fold_constants{
    .name = "fold-constants",
    .summary = "compute what depends on constants alone",
    .stage = Stage::Any,
    .keeps_result = true,
    .options = options,
    .run = run,
};

}  // namespace plimsoll
