#include "frontend/onnx/exported_factors.h"

#include "frontend/onnx/node_order.h"
#include "ir/adapter_names.h"

#include "llvm/ADT/STLExtras.h"

// PEFT adds (g - 1) W x + g (B A x) s to the frozen result W x, with g = magnitudes / norms of rows of W + s B A, and
// makes B A of a unit matrix that goes through both layers. So g is what B's result is multiplied by, beside the number
// s. Small layers are folded when they are exported, up to g and g - 1 themselves; larger ones in part, so that the
// norms may be those of a constant. Hence how norms are made is not looked into: they are the module's own.

namespace plimsoll {
namespace {

bool is_binary(const onnx::NodeProto* node, llvm::StringRef op) {
  return node && node->op_type() == op && node->input_size() == 2 && node->output_size() == 1;
}

const std::string& other_input(const onnx::NodeProto& node, const std::string& one) {
  return node.input(node.input(0) == one ? 1 : 0);
}

// Goes on to products with numbers, as long as they are all that reads the value.
void multiply_by_numbers(const ScopedGraph& graph, std::string& value, double& product) {
  for (const onnx::NodeProto* node = graph.only_reader(value); is_binary(node, "Mul");
       node = graph.only_reader(value)) {
    const std::optional<double> number = graph.number(other_input(*node, value));
    if (!number) return;
    product *= *number;
    value = node->output(0);
  }
}

class FactorFinder {
 public:
  FactorFinder(const ScopedGraph& graph, const AdaptedLayer& layer, ExportedAdapters& found)
      : graph_(graph), layer_(layer), found_(found) {}

  Status find() {
    std::string change = layer_.second->output(0);
    ExportedFactor factor{layer_.module, key(AdapterMatrix::A), key(AdapterMatrix::B), key(AdapterMatrix::Magnitude)};
    multiply_by_numbers(graph_, change, factor.scale);
    const onnx::NodeProto* product = graph_.only_reader(change);
    if (!is_binary(product, "Mul")) return Status::success();  // the frozen result is added
    if (!layer_.kind.empty())
      return model_error(layer_.module + " has magnitudes (DoRA) and is " + layer_.kind +
                         "; they are recognised of linear layers: export the model with DoRA of these alone");
    const int input = product->input(0) == change ? 1 : 0;
    change = product->output(0);
    multiply_by_numbers(graph_, change, factor.scale);

    const onnx::NodeProto* sum = graph_.only_reader(change);
    if (!is_binary(sum, "Add")) return refuse("that multiply more than its adapter");
    if (!layer_.frozen) return refuse("beside a matrix that is not stored in the model");
    const ScopedGraph::Stored weight = graph_.stored(*layer_.frozen, 1);
    factor.weight = weight.tensor->name();
    factor.weight_transposed = weight.transposed != reads_transpose(*layer_.frozen);
    outputs_ = found_.parameters.at(factor.b).type.shape[0];
    factor.folded = graph_.stored(*product, input).tensor != nullptr;
    if (Status s = factor.folded ? read_folded({product, input}, other_input(*sum, change))
                                 : read_computed(product->input(input)))
      return s;
    found_.factors.try_emplace(layer_.module, std::move(factor));
    return Status::success();
  }

 private:
  std::string key(AdapterMatrix matrix) const { return adapter_weight_name(layer_.module, matrix); }

  Status refuse(const llvm::Twine& what) const {
    return model_error(layer_.module + " has magnitudes (DoRA) " + what +
                       "; export the model without adapters, and compile it with --dora and its adapter");
  }

  // g is a division, whose readers read the factor instead, perhaps reshaped.
  Status read_computed(const std::string& value) {
    const onnx::NodeProto* division = graph_.producer_past(value, {"Reshape", "Unsqueeze", "Cast", "Identity"});
    if (!is_binary(division, "Div")) return refuse("that are not divided by norms");
    const onnx::NodeProto* norms = graph_.producer_past(division->input(1), {"Cast", "Identity"});
    if (!(norms && norms->op_type() == "ReduceL2") && !graph_.stored(*division, 1).tensor)
      return refuse("that are divided by something else than norms");
    const onnx::TensorProto* magnitude = graph_.stored(*division, 0).tensor;
    if (!magnitude) return refuse("that are not stored in the model");
    if (Status s = add_magnitude(*magnitude)) return s;
    for (const ScopedGraph::Reader& reader : graph_.readers(division->output(0)))
      found_.factor_operands[{reader.node, reader.input}] = {layer_.module, {outputs_}, false};
    return Status::success();
  }

  // g is a constant. g - 1, which the frozen result is multiplied by, is one, too, or is made of that constant.
  Status read_folded(const NodeInput& operand, const std::string& frozen_summand) {
    if (Status s = add_operand(operand, /*less_one=*/false)) return s;
    if (Status s = add_magnitude(*graph_.stored(*operand.first, operand.second).tensor)) return s;
    const onnx::NodeProto* frozen = graph_.producer(frozen_summand);
    if (!is_binary(frozen, "Mul")) return refuse("whose factor is not that of the frozen result");
    for (int i : {0, 1}) {
      if (graph_.stored(*frozen, i).tensor) return add_operand({frozen, i}, /*less_one=*/true);
      const onnx::NodeProto* less = graph_.producer(frozen->input(i));
      if (is_binary(less, "Sub") && graph_.stored(*less, 0).tensor && graph_.number(less->input(1)) == 1)
        return add_operand({less, 0}, /*less_one=*/false);
    }
    return refuse("whose factor is not that of the frozen result");
  }

  Status add_operand(const NodeInput& operand, bool less_one) {
    Result<Type> type = stored_type_from_onnx(*graph_.stored(*operand.first, operand.second).tensor);
    if (!type) return type.takeError();
    if (type->elements() != outputs_) return refuse("of " + llvm::Twine(type->elements()) + " outputs");
    found_.factor_operands[operand] = {layer_.module, type->shape, less_one};
    return Status::success();
  }

  Status add_magnitude(const onnx::TensorProto& tensor) {
    Result<Type> type = stored_type_from_onnx(tensor);
    if (!type) return type.takeError();
    if (type->elements() != outputs_ || !is_float(type->dtype)) return refuse("of the type " + to_string(*type));
    const std::string name = key(AdapterMatrix::Magnitude);
    found_.parameters.try_emplace(name, ExportedParameter{name, tensor.name(), Type(type->dtype, {outputs_}), false});
    return Status::success();
  }

  const ScopedGraph& graph_;
  const AdaptedLayer& layer_;
  ExportedAdapters& found_;
  int64_t outputs_ = 0;
};

}  // namespace

Status find_exported_factor(const ScopedGraph& graph, const AdaptedLayer& layer, ExportedAdapters& found) {
  return FactorFinder(graph, layer, found).find();
}

void find_unread_nodes(const ScopedGraph& graph, ExportedAdapters& found) {
  std::map<std::string, int64_t> reads;
  const auto count = [&](const std::string& name) { ++reads[name]; };
  for (const onnx::NodeProto& node : graph.proto().node()) for_each_read(node, count);
  std::vector<std::string> pending;
  for (const auto& [operand, factor] : found.factor_operands) {
    pending.push_back(operand.first->input(operand.second));
    --reads[pending.back()];
  }
  const auto is_unread = [&](const std::string& value) { return reads[value] == 0 && !graph.is_output(value); };
  while (!pending.empty()) {
    const onnx::NodeProto* node = graph.producer(pending.back());
    pending.pop_back();
    if (!node || !llvm::all_of(node->output(), is_unread) || !found.unread.insert(node).second) continue;
    for (const std::string& input : node->input()) {
      pending.push_back(input);
      --reads[input];
    }
  }
}

}  // namespace plimsoll
