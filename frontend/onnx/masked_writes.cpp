#include "frontend/onnx/masked_writes.h"

#include "frontend/onnx/scoped_graph.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {
namespace {

// Past nodes of the ops `past`.
const onnx::NodeProto* maker_of(const ScopedGraph& graph, const onnx::NodeProto* node, int input, llvm::StringRef op,
                                llvm::ArrayRef<llvm::StringRef> past = {}) {
  if (!node || input >= node->input_size()) return nullptr;
  const onnx::NodeProto* maker = graph.producer_past(node->input(input), past);
  return maker && maker->op_type() == op && maker->input_size() > 0 ? maker : nullptr;
}

// A scatter needs as many updates as places. Hence a slice of flat values that ends at a size of the places begins at
// the first value, and so does what is expanded to a row for each place.
std::optional<MaskedWrite> written_by(const ScopedGraph& graph, const onnx::NodeProto& scatter) {
  for (const onnx::AttributeProto& attribute : scatter.attribute())
    if (attribute.name() == "reduction" && attribute.s() != "none") return std::nullopt;
  const onnx::NodeProto* search = maker_of(graph, maker_of(graph, &scatter, 1, "Transpose"), 0, "NonZero");
  if (!search) return std::nullopt;
  if (const onnx::NodeProto* slice = maker_of(graph, &scatter, 2, "Slice"); slice && slice->input_size() == 4) {
    const onnx::NodeProto* size = maker_of(graph, maker_of(graph, slice, 2, "Gather", {"Unsqueeze"}), 0, "Shape");
    if (!size || size->input(0) != scatter.input(1)) return std::nullopt;
    return MaskedWrite{search->input(0), slice->input(0), MaskedWrite::Form::Elements};
  }
  const onnx::NodeProto* rows = maker_of(graph, maker_of(graph, &scatter, 2, "Reshape"), 0, "Expand");
  const onnx::NodeProto* sum = maker_of(graph, rows, 1, "ReduceSum", {"Concat"});
  const onnx::NodeProto* flat = maker_of(graph, maker_of(graph, sum, 0, "Cast"), 0, "Reshape");
  if (!flat) return std::nullopt;
  const onnx::NodeProto* whole = maker_of(graph, search, 0, "Expand");
  std::string mask = whole ? whole->input(0) : search->input(0);
  while (mask != flat->input(0)) {
    const onnx::NodeProto* unsqueeze = graph.producer(mask);
    if (!unsqueeze || unsqueeze->op_type() != "Unsqueeze") return std::nullopt;
    mask = unsqueeze->input(0);
  }
  return MaskedWrite{mask, rows->input(0), MaskedWrite::Form::Rows};
}

// Does nothing but `scatters` read what is computed from the node?
bool is_read_by(const ScopedGraph& graph, const onnx::NodeProto& first,
                const std::map<const onnx::NodeProto*, MaskedWrite>& scatters) {
  const std::array<llvm::StringRef, 6> passed_on = {"Transpose", "Shape", "Gather", "Unsqueeze", "Slice", "Reshape"};
  std::vector<const onnx::NodeProto*> pending{&first};
  std::set<const onnx::NodeProto*> seen(pending.begin(), pending.end());
  while (!pending.empty()) {
    const onnx::NodeProto* node = pending.back();
    pending.pop_back();
    for (const std::string& output : node->output()) {
      if (graph.is_output(output)) return false;
      for (const ScopedGraph::Reader& reader : graph.readers(output)) {
        if (scatters.count(reader.node) > 0 && reader.input > 0) continue;
        if (!llvm::is_contained(passed_on, reader.node->op_type())) return false;
        if (seen.insert(reader.node).second) pending.push_back(reader.node);
      }
    }
  }
  return true;
}

}  // namespace

MaskedWrites find_masked_writes(const onnx::GraphProto& proto) {
  MaskedWrites found;
  if (llvm::none_of(proto.node(), [](const onnx::NodeProto& node) { return node.op_type() == "NonZero"; }))
    return found;
  const ScopedGraph graph(proto);
  for (const onnx::NodeProto& node : proto.node())
    if (node.op_type() == "ScatterND" && node.input_size() == 3)
      if (std::optional<MaskedWrite> write = written_by(graph, node)) found.by_scatter[&node] = std::move(*write);
  for (const onnx::NodeProto& node : proto.node())
    if ((node.op_type() == "NonZero" || node.op_type() == "Expand") && is_read_by(graph, node, found.by_scatter))
      found.sizeless.insert(&node);
  return found;
}

}  // namespace plimsoll
