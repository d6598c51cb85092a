#include "passes/target/row_scatters.h"

#include "passes/analysis/cost_model.h"
#include "passes/rewrite/match.h"

#include <limits>

namespace plimsoll {
namespace {

// One index for each of `rows` rows, all of whose elements have it; None where they differ.
ValueId indices_of_rows(const Graph& graph, ValueId indices, int64_t rows) {
  ValueId value = below_reshapes(graph, indices);
  if (const ValueId narrow = value_below(graph, value, "expand"); narrow != ValueId::None)
    if (graph.type(value).shape == graph.type(indices).shape && !graph.type(narrow).shape.empty() &&
        graph.type(narrow).rank() == graph.type(value).rank() && graph.type(narrow).shape[0] == rows)
      value = below_reshapes(graph, narrow);
  return graph.type(value).elements() == rows ? value : ValueId::None;
}

bool match_picked(const Graph& graph, const Node& node, RowScatter& scatter) {
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

bool match_scatter(const Graph& graph, const Node& node, RowScatter& scatter) {
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

}  // namespace

ValueId below_reshapes(const Graph& graph, ValueId value) {
  for (ValueId below = value; below != ValueId::None; below = value_below(graph, value, "reshape")) value = below;
  return value;
}

std::optional<RowScatter> match_row_scatter(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const llvm::StringRef op = node.op->name;
  RowScatter scatter{id, ValueId::None, 0, "", "", {}};
  bool fits = false;
  if (op == "gather_grad" || op == "gather_elements_grad") fits = match_picked(graph, node, scatter);
  if (op == "scatter_nd" || op == "scatter_elements") fits = match_scatter(graph, node, scatter);
  const DType dtype = graph.type(node.results[0]).dtype;
  if (!fits || !is_float(dtype) || scatter.size < 1 || graph.type(scatter.indices).elements() < 1) return std::nullopt;
  return scatter;
}

Type rows_of(const Graph& graph, const RowScatter& scatter) {
  const Type& x = graph.type(operand_of(graph.node(scatter.node), scatter.x));
  const int64_t count = graph.type(scatter.indices).elements();
  return Type(x.dtype, {count, x.elements() / count});
}

NodeId node_behind(const Graph& graph, ValueId value) {
  const NodeId producer = graph.value(value).producer;
  return producer == NodeId::None ? graph.first_node() : graph.next_node(producer);
}

double us_of(const PlanDraft& draft, const OpCall& call) {
  const KernelCandidate kernel = draft.catalog->candidates(call.op, call, llvm::cantFail(infer(call))).front();
  const bool is_known = kernel.name != "reference" && kernel.predicted_us > 0;
  return is_known ? kernel.predicted_us : std::numeric_limits<double>::infinity();
}

double us_of(const PlanDraft& draft, const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  return predicted_us(graph, node, chosen_kernel(graph, node, *draft.catalog), draft.device);
}

}  // namespace plimsoll
