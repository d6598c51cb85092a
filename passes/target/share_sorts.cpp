#include "ir/support/units.h"
#include "passes/analysis/cost_model.h"
#include "passes/analysis/plan_draft.h"
#include "passes/rewrite/match.h"

#include <limits>
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

// An op that combines whole rows of `x` into rows of its result.
struct Scatter {
  NodeId node;
  ValueId indices;  // one for each row of x
  int64_t size = 0;
  llvm::StringLiteral x, base;  // operands; base: empty for zeros
  Attrs attrs;                  // of the segment_reduce
};

ValueId below_reshapes(const Graph& graph, ValueId value) {
  for (ValueId below = value; below != ValueId::None; below = value_below(graph, value, "reshape")) value = below;
  return value;
}

// One index for each of `rows` rows, all of whose elements have it; None where they differ.
ValueId indices_of_rows(const Graph& graph, ValueId indices, int64_t rows) {
  ValueId value = below_reshapes(graph, indices);
  if (const ValueId narrow = value_below(graph, value, "expand"); narrow != ValueId::None)
    if (graph.type(value).shape == graph.type(indices).shape && !graph.type(narrow).shape.empty() &&
        graph.type(narrow).rank() == graph.type(value).rank() && graph.type(narrow).shape[0] == rows)
      value = below_reshapes(graph, narrow);
  return graph.type(value).elements() == rows ? value : ValueId::None;
}

bool match_picked(const Graph& graph, const Node& node, Scatter& scatter) {
  if (node.attrs.get_int("axis") != 0) return false;
  scatter.size = node.attrs.get_int("size");
  scatter.x = "dy";
  if (operand_of(node, "addend") != ValueId::None) scatter.base = "addend";
  scatter.attrs.set("reduction", "add");
  if (node.attrs.has("dtype")) scatter.attrs.set("dtype", node.attrs.get_dtype("dtype"));
  const ValueId indices = operand_of(node, "indices");
  const bool of_elements = node.op->name == "gather_elements_grad";
  const llvm::ArrayRef<int64_t> shape = graph.type(operand_of(node, "dy")).shape;
  scatter.indices =
      of_elements ? indices_of_rows(graph, indices, shape.empty() ? 0 : shape[0]) : below_reshapes(graph, indices);
  return scatter.indices != ValueId::None;
}

bool match_scatter(const Graph& graph, const Node& node, Scatter& scatter) {
  const std::string reduction = node.attrs.get_string("reduction", "none").str();
  if (reduction == "mul") return false;
  scatter.x = "updates";
  scatter.attrs.set("reduction", reduction);
  const ValueId indices = operand_of(node, "indices");
  const llvm::ArrayRef<int64_t> whole = graph.type(operand_of(node, "x")).shape;
  const llvm::ArrayRef<int64_t> shape = graph.type(operand_of(node, "updates")).shape;
  scatter.size = whole.empty() ? 0 : whole[0];
  if (node.op->name == "scatter_nd") {
    if (graph.type(indices).shape.back() != 1) return false;
    scatter.indices = below_reshapes(graph, indices);
  } else {
    if (node.attrs.get_int("axis") != 0 || whole.drop_front() != shape.drop_front()) return false;
    scatter.indices = indices_of_rows(graph, indices, shape[0]);
  }
  if (!is_splat(graph, operand_of(node, "x"), 0)) scatter.base = "x";
  return scatter.indices != ValueId::None;
}

std::optional<Scatter> match(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const llvm::StringRef op = node.op->name;
  Scatter scatter{id, ValueId::None, 0, "", "", {}};
  bool fits = false;
  if (op == "gather_grad" || op == "gather_elements_grad") fits = match_picked(graph, node, scatter);
  if (op == "scatter_nd" || op == "scatter_elements") fits = match_scatter(graph, node, scatter);
  const DType dtype = graph.type(node.results[0]).dtype;
  if (!fits || !is_float(dtype) || scatter.size < 1 || graph.type(scatter.indices).elements() < 1) return std::nullopt;
  return scatter;
}

class Sharer {
 public:
  Sharer(const PlanDraft& draft, Graph& graph) : draft_(draft), graph_(graph) {}

  // How many ops now share this sort: those of `scatters`, in the graph's order, that gain by it, if together they gain
  // more than the sort takes.
  int64_t share(llvm::ArrayRef<Scatter> scatters) {
    const Type indices = graph_.type(scatters.front().indices);
    const Attrs attrs{{"size", scatters.front().size}};
    const llvm::SmallVector<const Type*, 1> operands{&indices};
    const OpCall sort(get_op("sort_indices"), attrs, operands);
    const Types sorted = llvm::cantFail(infer(sort));
    double saved_us = -us(sort);
    llvm::SmallVector<Scatter, 8> gaining;
    for (const Scatter& scatter : scatters) {
      const double gained_us = us_of(scatter.node) - reduce_us(scatter, sorted);
      if (gained_us <= 0) continue;
      saved_us += gained_us;
      gaining.push_back(scatter);
    }
    if (saved_us <= 0) return 0;
    Builder b = builder_at(graph_, gaining.front().node);
    const auto made = b.emit_all("sort_indices", {gaining.front().indices}, attrs);
    for (const Scatter& scatter : gaining) reduce(scatter, made);
    saved_us_ += saved_us;
    return static_cast<int64_t>(gaining.size());
  }

  double saved_us() const { return saved_us_; }

 private:
  // Without a kernel of its own, or a prediction of it, no op gains.
  double us(const OpCall& call) const {
    const KernelCandidate kernel = draft_.catalog->candidates(call.op, call, llvm::cantFail(infer(call))).front();
    const bool is_known = kernel.name != "reference" && kernel.predicted_us > 0;
    return is_known ? kernel.predicted_us : std::numeric_limits<double>::infinity();
  }

  double us_of(NodeId id) const {
    const Node& node = graph_.node(id);
    return predicted_us(graph_, node, chosen_kernel(graph_, node, *draft_.catalog), draft_.device);
  }

  Type rows_of(const Scatter& scatter) const {
    const Type& x = graph_.type(operand_of(graph_.node(scatter.node), scatter.x));
    const int64_t count = graph_.type(scatter.indices).elements();
    return Type(x.dtype, {count, x.elements() / count});
  }

  // The base in the shape that the rows of x give the result.
  Shape base_shape(const Scatter& scatter) const { return {scatter.size, rows_of(scatter).shape[1]}; }

  double reduce_us(const Scatter& scatter, llvm::ArrayRef<Type> sorted) const {
    const Type x = rows_of(scatter), base(graph_.type(graph_.node(scatter.node).results[0]).dtype, base_shape(scatter));
    llvm::SmallVector<const Type*, 5> operands{&x, &sorted[0], &sorted[1], &sorted[2]};
    if (!scatter.base.empty()) operands.push_back(&base);
    return us(OpCall(get_op("segment_reduce"), scatter.attrs, operands));
  }

  void reduce(const Scatter& scatter, llvm::ArrayRef<ValueId> sorted) {
    Builder b = builder_at(graph_, scatter.node);
    const ValueId old = graph_.node(scatter.node).results[0];
    const Shape shape = graph_.type(old).shape;
    const Node node = graph_.node(scatter.node);
    llvm::SmallVector<ValueId, 5> operands{b.reshape(operand_of(node, scatter.x), rows_of(scatter).shape)};
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
  std::map<std::pair<ValueId, int64_t>, llvm::SmallVector<Scatter, 4>> by_indices;
  for (NodeId id : graph.order())
    if (std::optional<Scatter> scatter = match(graph, id))
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
