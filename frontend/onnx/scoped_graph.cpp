#include "frontend/onnx/scoped_graph.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {
namespace {

// The number of a tensor of one float; such tensors are stored in the model's file itself.
std::optional<double> only_number(const onnx::TensorProto& tensor) {
  Result<Type> type = stored_type_from_onnx(tensor);
  if (!type) return llvm::consumeError(type.takeError()), std::nullopt;
  if (!is_float(type->dtype) || type->elements() != 1 || is_external(tensor)) return std::nullopt;
  ExternalData none("");
  Result<Tensor> number = tensor_from_onnx(tensor, none);
  if (!number) return llvm::consumeError(number.takeError()), std::nullopt;
  return number->get(0);
}

}  // namespace

ScopedGraph::ScopedGraph(const onnx::GraphProto& graph) : graph_(graph) {
  for (const onnx::TensorProto& tensor : graph.initializer()) initializers_[tensor.name()] = &tensor;
  for (const onnx::ValueInfoProto& output : graph.output()) outputs_.insert(output.name());
  for (const onnx::NodeProto& node : graph.node()) {
    for (const std::string& output : node.output()) producers_[output] = &node;
    for (int i = 0; i < node.input_size(); ++i) readers_[node.input(i)].push_back({&node, i});
    scopes_[&node] = origin_of(node).module;
  }
}

const onnx::NodeProto* ScopedGraph::producer(const std::string& value) const {
  const auto found = producers_.find(value);
  return found == producers_.end() ? nullptr : found->second;
}

const onnx::NodeProto* ScopedGraph::producer_past(const std::string& value, llvm::ArrayRef<llvm::StringRef> ops) const {
  const onnx::NodeProto* node = producer(value);
  for (int step = 0; step < graph_.node_size() && node && llvm::is_contained(ops, node->op_type()); ++step)
    node = node->input_size() > 0 ? producer(node->input(0)) : nullptr;
  return node;
}

llvm::ArrayRef<ScopedGraph::Reader> ScopedGraph::readers(const std::string& value) const {
  const auto found = readers_.find(value);
  return found == readers_.end() ? llvm::ArrayRef<Reader>() : llvm::ArrayRef<Reader>(found->second);
}

const onnx::NodeProto* ScopedGraph::only_reader(const std::string& value) const {
  const llvm::ArrayRef<Reader> all = readers(value);
  return all.size() == 1 && !is_output(value) ? all.front().node : nullptr;
}

ScopedGraph::Stored ScopedGraph::stored(const std::string& value) const {
  Stored stored;
  const std::string* name = &value;
  for (int step = 0; step < graph_.node_size(); ++step) {  // a damaged file may have a cycle
    const onnx::NodeProto* maker = producer(*name);
    if (!maker) break;
    const bool transposes = maker->op_type() == "Transpose";
    if ((!transposes && maker->op_type() != "Identity") || maker->input_size() != 1) return {};
    stored.transposed ^= transposes;
    name = &maker->input(0);
  }
  const auto found = initializers_.find(*name);
  if (found == initializers_.end()) return {};
  stored.tensor = found->second;
  if (stored.transposed && stored.tensor->dims_size() != 2) return {};
  return stored;
}

ScopedGraph::Stored ScopedGraph::stored(const onnx::NodeProto& node, int input) const {
  return input < node.input_size() ? stored(node.input(input)) : Stored();
}

std::optional<double> ScopedGraph::number(const std::string& value) const {
  if (const Stored found = stored(value); found.tensor) return only_number(*found.tensor);
  const onnx::NodeProto* maker = producer_past(value, {"Cast", "Identity"});
  if (!maker || maker->op_type() != "Constant" || maker->attribute_size() != 1) return std::nullopt;
  const onnx::AttributeProto& constant = maker->attribute(0);
  if (constant.name() == "value_float") return constant.f();
  return constant.has_t() ? only_number(constant.t()) : std::nullopt;
}

}  // namespace plimsoll
