#include "ir/support/units.h"
#include "passes/analysis/cost_model.h"
#include "passes/analysis/plan_draft.h"
#include "passes/rewrite/match.h"
#include "passes/target/row_scatters.h"

#include <map>

// The planning step share-sorts takes the sort of the indices out of the ops that scatter rows by them. Each then is a
// segment_reduce, and those that have the same indices share one sort_indices: the layers of a graph network, and
// forward with backward. It compares what is predicted for the ops as they are and for the sort with the segment
// reductions, and leaves ops alone whose kernels look through few rows without a sort.
//
// It is right because both combine the same rows, in the order of their indices. Scatters in 16 bits that round after
// each update round once instead. It runs when gradients have been derived and ranks have their rows.

namespace plimsoll {
namespace {

class Sharer {
 public:
  Sharer(const PlanDraft& draft, Graph& graph) : draft_(draft), graph_(graph) {}

  // How many ops now share this sort: those of `scatters`, in the graph's order, that gain by it, if together they gain
  // more than the sort takes where it is not there yet.
  int64_t share(llvm::ArrayRef<RowScatter> scatters) {
    const Type indices = graph_.type(scatters.front().indices);
    const Attrs attrs{{"size", scatters.front().size}};
    const llvm::SmallVector<const Type*, 1> operands{&indices};
    const OpCall sort(get_op("sort_indices"), attrs, operands);
    const Types sorted = llvm::cantFail(infer(sort));
    llvm::SmallVector<ValueId, 4> made = sorted_already(scatters.front().indices, attrs);
    double saved_us = made.empty() ? -us_of(draft_, sort) : 0;
    llvm::SmallVector<RowScatter, 8> gaining;
    for (const RowScatter& scatter : scatters) {
      const double gained_us = us_of(draft_, graph_, scatter.node) - reduce_us(scatter, sorted);
      if (gained_us <= 0) continue;
      saved_us += gained_us;
      gaining.push_back(scatter);
    }
    if (saved_us <= 0) return 0;
    if (made.empty())
      made = builder_at(graph_, gaining.front().node).emit_all("sort_indices", {gaining.front().indices}, attrs);
    for (const RowScatter& scatter : gaining) reduce(scatter, made);
    saved_us_ += saved_us;
    return static_cast<int64_t>(gaining.size());
  }

  double saved_us() const { return saved_us_; }

 private:
  // What sum-gathered sorted, right behind the indices.
  llvm::SmallVector<ValueId, 4> sorted_already(ValueId indices, const Attrs& attrs) const {
    for (NodeId user : graph_.value(indices).users) {
      const Node& node = graph_.node(user);
      if (node.op->name == "sort_indices" && node.attrs == attrs)
        return llvm::SmallVector<ValueId, 4>(node.results.begin(), node.results.end());
    }
    return {};
  }

  // The base in the shape that the rows of x give the result.
  Shape base_shape(const RowScatter& scatter) const { return {scatter.size, rows_of(graph_, scatter).shape[1]}; }

  double reduce_us(const RowScatter& scatter, llvm::ArrayRef<Type> sorted) const {
    const Type x = rows_of(graph_, scatter),
               base(graph_.type(graph_.node(scatter.node).results[0]).dtype, base_shape(scatter));
    llvm::SmallVector<const Type*, 5> operands{&x, &sorted[0], &sorted[1], &sorted[2]};
    if (!scatter.base.empty()) operands.push_back(&base);
    return us_of(draft_, OpCall(get_op("segment_reduce"), scatter.attrs, operands));
  }

  void reduce(const RowScatter& scatter, llvm::ArrayRef<ValueId> sorted) {
    Builder b = builder_at(graph_, scatter.node);
    const ValueId old = graph_.node(scatter.node).results[0];
    const Shape shape = graph_.type(old).shape;
    const Node node = graph_.node(scatter.node);
    llvm::SmallVector<ValueId, 5> operands{b.reshape(operand_of(node, scatter.x), rows_of(graph_, scatter).shape)};
    operands.append(sorted.begin(), sorted.end());
    if (!scatter.base.empty()) operands.push_back(b.reshape(operand_of(node, scatter.base), base_shape(scatter)));
    replace_and_rename(graph_, old, b.reshape(b.emit("segment_reduce", operands, scatter.attrs), shape));
    graph_.erase_node(scatter.node);
  }

  const PlanDraft& draft_;
  Graph& graph_;
  double saved_us_ = 0;
};

Result<bool> run(PlanDraft& draft, size_t function, PassContext& context) {
  Graph& graph = draft.program.functions[function];
  std::map<std::pair<ValueId, int64_t>, llvm::SmallVector<RowScatter, 4>> by_indices;
  for (NodeId id : graph.order())
    if (std::optional<RowScatter> scatter = match_row_scatter(graph, id))
      by_indices[{scatter->indices, scatter->size}].push_back(std::move(*scatter));
  Sharer sharer(draft, graph);
  int64_t sorts = 0, ops = 0;
  for (const auto& [indices, scatters] : by_indices)
    if (const int64_t shared = sharer.share(scatters)) {
      ++sorts;
      ops += shared;
    }
  if (sorts == 0) return false;
  context.count("ops", ops);
  draft.functions[function] = {};
  context.decide(
      "sorts of indices",
      std::to_string(sorts) + (sorts == 1 ? " serves " : " serve ") + std::to_string(ops) + (ops == 1 ? " op" : " ops"),
      "saves " + format_us(sharer.saved_us()));
  return true;
}

}  // namespace

constinit const PassInfo pass_share_sorts{
    .name = "share-sorts",
    .summary = "sort indices once for all ops that scatter rows by them, where that is predicted to take less time",
    .plan = run,
};

}  // namespace plimsoll
