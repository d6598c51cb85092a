#include "frontend/onnx/importer.h"
#include "frontend/onnx/open_dims.h"
#include "frontend/onnx/state_names.h"
#include "ir/adapter_names.h"
#include "ir/support/strings.h"

// Imports the boundary of a model: dimensions, inputs, initializers as states or constants, and outputs.

namespace plimsoll {

Importer::Importer(const Model& model, const ImportOptions& options)
    : model_(model), options_(options), builder_(imported_.graph) {
  const onnx::GraphProto& graph = model.proto().graph();
  imported_.graph.name = graph.name().empty() ? "main" : graph.name();
  signature_ = ExportSignature::read(graph);
  folded_ = find_folded_parameters(graph, signature_);
  quantised_ = find_quantised_weights(graph);
  masked_writes_ = find_masked_writes(graph);
  main_.opset = model.opset();
  for (const auto* list : {&graph.value_info(), &graph.output(), &graph.input()})
    for (const onnx::ValueInfoProto& info : *list) declared_[info.name()] = &info;
  for (const onnx::FunctionProto& function : model.proto().functions())
    functions_[function.domain() + ":" + function.name()] = &function;
}

Imported Importer::run() {
  Result<WeightSource> weights = WeightSource::open(model_);
  if (!weights) {
    add_obstacle(Obstacle::Kind::BadModel, "initializers", take_diag(weights.takeError()).text());
    return std::move(imported_);
  }
  weights_ = std::move(*weights);
  Result<ExportedAdapters> adapters = find_exported_adapters(model_.proto().graph());
  if (adapters)
    adapters_ = std::move(*adapters);
  else
    add_obstacle(Obstacle::Kind::BadModel, "adapters", take_diag(adapters.takeError()).text());
  bind_dims();
  for (const onnx::ValueInfoProto& input : model_.proto().graph().input())
    if (!weights_->find(input.name())) add_input(input);
  import_nodes(model_.proto().graph().node(), main_);
  add_outputs();
  note_folded_batch_norms();
  note_lost_parameters();
  dce();
  return std::move(imported_);
}

void Importer::bind_dims() {
  std::vector<std::string> names;
  for (const onnx::ValueInfoProto& input : model_.proto().graph().input())
    for (int axis = 0; axis < input.type().tensor_type().shape().dim_size(); ++axis) {
      std::string name = open_dim_name(input, axis);
      if (name.empty()) continue;
      if (!llvm::is_contained(names, name)) names.push_back(name);
      auto bound = options_.dims.find(name);
      if (bound != options_.dims.end()) {
        dims_[name] = bound->second;
        continue;
      }
      dims_are_guessed_ = true;
      dims_[name] = 1;
      add_obstacle(Obstacle::Kind::UnboundDim, name,
                   "dimension " + name + " has no size; give it one with --dim " + name + "=N", input.name());
    }
  for (const auto& [name, size] : options_.dims) {
    if (size < 1)
      add_obstacle(Obstacle::Kind::BadModel, name, "dimension " + name + " cannot be " + std::to_string(size));
    if (!llvm::is_contained(names, name))
      add_obstacle(Obstacle::Kind::BadModel, name,
                   "the model has no dimension named " + name +
                       (names.empty() ? ", all its sizes are fixed" : "; it has " + llvm::join(names, ", ")));
  }
}

constexpr int64_t max_input_elements = int64_t{1} << 31;  // so small that the product of two does not overflow

std::optional<Type> Importer::declared_type(const onnx::ValueInfoProto& info) {
  const auto& tensor = info.type().tensor_type();
  if (!info.type().has_tensor_type() || !tensor.has_shape()) return std::nullopt;
  Result<DType> dtype = dtype_from_onnx(tensor.elem_type());
  if (!dtype) return llvm::consumeError(dtype.takeError()), std::nullopt;
  Type type(*dtype, {});
  int64_t elements = 1;
  for (int axis = 0; axis < tensor.shape().dim_size(); ++axis) {
    std::string name = open_dim_name(info, axis);
    auto bound = dims_.find(name);
    if (!name.empty() && bound == dims_.end()) return std::nullopt;
    type.shape.push_back(name.empty() ? tensor.shape().dim(axis).dim_value() : bound->second);
    if (type.shape.back() < 0) return std::nullopt;
    if ((elements *= std::max<int64_t>(type.shape.back(), 1)) > max_input_elements) {
      add_obstacle(Obstacle::Kind::BadModel, info.name(),
                   info.name() + " has more than " + std::to_string(max_input_elements) +
                       " elements, the most that an input can have; take smaller dimensions");
      return std::nullopt;
    }
  }
  return type;
}

void Importer::add_input(const onnx::ValueInfoProto& input) {
  std::optional<Type> type = declared_type(input);
  if (!type) {
    add_obstacle(Obstacle::Kind::BadModel, input.name(),
                 "input " + input.name() + " is not a tensor of a known element type and rank");
    define(input.name(), Item::unknown(), main_);
    return;
  }
  auto fixed = options_.constant_inputs.find(input.name());
  if (fixed == options_.constant_inputs.end()) {
    define(input.name(), Item::of(graph().add_input(input.name(), *type)), main_);
    return;
  }
  if (fixed->second.type() != *type)
    add_obstacle(Obstacle::Kind::BadModel, input.name(),
                 "input " + input.name() + " is " + to_string(*type) + ", the value given for it is " +
                     to_string(fixed->second.type()));
  define(input.name(), Item::of(builder_.constant(fixed->second, input.name())), main_);
}

// Numbers that decide shapes and settings must be known now; learned and large tensors stay outside the graph.
constexpr int64_t max_constant_elements = int64_t{1} << 16;
constexpr int64_t max_folded_elements = int64_t{1} << 18;  // PyTorch's exporter folds up to this size

// Finds a transposed copy of a parameter that the model also has under its own name. Optimizing exporters make it of a
// weight that an embedding and a projection share.
std::string Importer::transposed_from(const Weight& copy) const {
  const Shape& shape = copy.type.shape;
  if (signature_.empty() || shape.size() != 2 || copy.type.elements() > max_folded_elements) return "";
  Result<Tensor> mine = weights_->load(copy.name);
  if (!mine) return llvm::consumeError(mine.takeError()), "";
  for (const Weight& other : weights_->weights()) {
    if (!signature_.is_parameter(other.name).value_or(false) ||
        other.type != Type(copy.type.dtype, {shape[1], shape[0]}))
      continue;
    Result<Tensor> theirs = weights_->load(other.name);
    if (!theirs) return llvm::consumeError(theirs.takeError()), "";
    bool equal = true;
    for (int64_t i = 0; i < copy.type.elements() && equal; ++i)
      equal = mine->get(i) == theirs->get(i % shape[1] * shape[0] + i / shape[1]);
    if (equal) return other.name;
  }
  return "";
}

bool Importer::is_parameter(const Weight& weight) const {
  if (signature_.empty()) return !is_buffer_name(weight.name, weight.type.elements());
  // An initializer that torch.export does not list is a constant of the exporter, or stands for parameters.
  return signature_.is_parameter(weight.name).value_or(folded_.stand_ins.count(weight.name) != 0);
}

// Named as PEFT names it, so that a plan knows it as an adapter's, whatever the exporter has made of it.
ValueId Importer::adapter_state(const ExportedParameter& parameter) {
  const std::string name = adapters_.prefix + parameter.key;
  const ValueId known = graph().find_value(name);
  if (known != ValueId::None) return known;
  return graph().add_state(name, parameter.type, StateRole::Parameter, {StateInit::Kind::Weights, 0, parameter.key},
                           true);
}

// A layer reads the transpose of what PEFT's files have, unless it says otherwise or is a lookup or a convolution.
std::optional<Item> Importer::adapter_item(const onnx::NodeProto& node, int input) {
  if (std::optional<Item> factor = factor_item(node, input)) return factor;
  const auto found = adapters_.operands.find({&node, input});
  if (found == adapters_.operands.end()) return std::nullopt;
  const ValueId state = adapter_state(adapters_.parameters.at(found->second));
  return Item::of(reads_transpose(node) ? builder_.transpose(state, {1, 0}) : state);
}

// None after an obstacle. It is computed once, of the weight as it is stored and of f32 matrices.
ValueId Importer::adapter_factor(const ExportedFactor& factor, const onnx::NodeProto& node) {
  const std::string name = adapters_.prefix + (adapter_prefix + factor.module + ".lora_scale").str();
  if (const ValueId known = graph().find_value(name); known != ValueId::None) return known;
  const Item* weight = look_up(factor.weight, main_, factor.module);
  if (!weight || weight->kind != Item::Kind::Tensor) return ValueId::None;
  const DType dtype = graph().type(weight->tensor).dtype == DType::F64 ? DType::F64 : DType::F32;
  const auto matrix = [&](const std::string& key) {
    return builder_.cast(adapter_state(adapters_.parameters.at(key)), dtype);
  };
  Result<ValueList> made =
      emit(get_op("dora_scale"), {weight->tensor, matrix(factor.a), matrix(factor.b), matrix(factor.magnitude)},
           {{"scale", factor.scale}, {"transpose_w", int64_t{!factor.weight_transposed}}}, name);
  if (!made) {
    add_obstacle(Obstacle::Kind::BadModel, factor.module, factor.module + ": " + take_diag(made.takeError()).text());
    return ValueId::None;
  }
  graph().node(graph().value(made->front()).producer).origin = graph().add_origin(origin_of(node));
  return made->front();
}

std::optional<Item> Importer::factor_item(const onnx::NodeProto& node, int input) {
  const auto found = adapters_.factor_operands.find({&node, input});
  if (found == adapters_.factor_operands.end()) return std::nullopt;
  const ExportedFactor& factor = adapters_.factors.at(found->second.module);
  ValueId value = adapter_factor(factor, node);
  if (value == ValueId::None) return Item::unknown();
  if (found->second.less_one) value = builder_.emit("sub", {value, builder_.scalar(1, graph().type(value).dtype)});
  value = builder_.cast(value, adapters_.parameters.at(factor.magnitude).type.dtype);
  return Item::of(builder_.reshape(value, found->second.shape));
}

Item Importer::initializer_item(const Weight& weight) {
  if (const auto saved = adapters_.initializers.find(weight.name); saved != adapters_.initializers.end())
    return Item::of(adapter_state(adapters_.parameters.at(saved->second)));
  const Type& type = weight.type;
  if (weight.four_bits || quantised_.contains(weight.name)) {
    StateInit init{StateInit::Kind::Weights, 0, weight.name};
    return Item::of(graph().add_state(weight.name, type, StateRole::Parameter, std::move(init), false));
  }
  const bool parameter = is_parameter(weight), inside = weight.place == Weight::Place::Inside;
  const bool unlisted = !signature_.empty() && !signature_.is_parameter(weight.name);
  if (is_float(type.dtype) && unlisted && !parameter)
    if (std::string original = transposed_from(weight); !original.empty()) {
      const Item* source = look_up(original, main_, weight.name);
      return Item::of(builder_.transpose(source->tensor, {1, 0}));
    }
  bool constant = inside || (weight.place == Weight::Place::External && type.elements() <= max_constant_elements);
  if (is_float(type.dtype)) {
    const bool computed = unlisted || signature_.is_computed(weight.name);
    constant = inside && !parameter && type.elements() <= (computed ? max_folded_elements : 1);
  }
  if (constant) {
    Result<Tensor> value = weights_->load(weight.name);
    if (value) return Item::of(builder_.constant(std::move(*value), weight.name));
    add_obstacle(Obstacle::Kind::BadModel, weight.name, take_diag(value.takeError()).text());
    return Item::unknown();
  }
  const bool is_float_parameter = parameter && is_float(type.dtype);
  StateInit init{StateInit::Kind::Weights, 0, weight.name};
  StateRole role = is_float_parameter ? StateRole::Parameter : StateRole::Buffer;
  // Beside adapters the model is frozen.
  return Item::of(graph().add_state(weight.name, type, role, std::move(init), is_float_parameter && adapters_.empty()));
}

const Weight* Importer::weight_behind(ValueId value) const {
  const State* state = value == ValueId::None ? nullptr : graph().find_state(value);
  return state && state->init.kind == StateInit::Kind::Weights ? weights_->find(state->init.source) : nullptr;
}

TensorRef Importer::stored_value(ValueId value) const {
  const State* state = graph().find_state(value);
  if (!state || state->init.kind != StateInit::Kind::Weights) return nullptr;
  const Weight* weight = weights_->find(state->init.source);
  if (!weight || weight->place == Weight::Place::Absent || weight->type.elements() > max_constant_elements)
    return nullptr;
  Result<Tensor> tensor = weights_->load(weight->name);
  if (!tensor) return llvm::consumeError(tensor.takeError()), nullptr;
  return std::make_shared<const Tensor>(std::move(*tensor));
}

ValueId Importer::random_counter() {
  if (counter_ == ValueId::None)
    counter_ = graph().add_state("rng", Type(DType::I64, {2}), StateRole::Counter, {StateInit::Kind::Fill, 0, ""});
  return counter_;
}

void Importer::mark_buffer(ValueId value) {
  for (State& state : graph().states)
    if (state.value == value) {
      state.role = StateRole::Buffer;
      state.trained = false;
    }
}

ValueId Importer::state_so_far(ValueId state) const {
  for (const Update& update : graph().updates)
    if (update.state == state) return update.value;
  return state;
}

void Importer::update_state(ValueId state, ValueId next) {
  for (Update& update : graph().updates)
    if (update.state == state) {
      update.value = next;
      return;
    }
  graph().updates.push_back({state, next});
}

void Importer::add_outputs() {
  for (const onnx::ValueInfoProto& output : model_.proto().graph().output()) {
    const Item* item = look_up(output.name(), main_, "the graph's output");
    if (!item || item->kind == Item::Kind::Unknown) continue;
    if (item->kind == Item::Kind::Tensor)
      graph().outputs.push_back({output.name(), item->tensor});
    else
      add_obstacle(Obstacle::Kind::BadModel, output.name(), "output " + output.name() + " is not a tensor");
  }
}

// An exporter in evaluation mode multiplies batch norms into the convolutions before them and stores the results under
// new names.
void Importer::note_folded_batch_norms() {
  for (const onnx::NodeProto& node : model_.proto().graph().node()) {
    if (node.op_type() == "BatchNormalization") return;
    if (node.op_type() == "Conv" && node.input_size() == 3 && starts_with(node.input(1), "onnx::Conv"))
      add_obstacle(Obstacle::Kind::FoldedBatchNorm, "batch norm",
                   "batch norms are folded into convolution weights, so their statistics and scales cannot be "
                   "trained; export the model in training mode to keep them",
                   node_name(node));
  }
}

void Importer::note_lost_parameters() {
  constexpr size_t names_shown = 3;
  const StateNames names = find_state_names(model_.proto().graph());
  llvm::erase_if(folded_.lost, [&](llvm::StringRef name) {
    return names.tied.count(name.str()) > 0 || (!adapters_.empty() && name.contains(".lora_"));
  });
  if (folded_.lost.empty()) return;
  llvm::ArrayRef<std::string> shown = llvm::ArrayRef<std::string>(folded_.lost).take_front(names_shown);
  add_obstacle(
      Obstacle::Kind::LostParameter, "parameters",
      llvm::Twine(folded_.lost.size()) + " parameters of the model are not in the file (" + llvm::join(shown, ", ") +
          (folded_.lost.size() > names_shown ? ", ..." : "") +
          "): the exporter folded them into constants, or found them zero or unused; they are not trained; export with "
          "optimize=False to keep them");
}

void Importer::dce() {
  std::vector<NodeId> order = graph().order();
  for (NodeId id : llvm::reverse(order))
    if (llvm::none_of(graph().node(id).results, [&](ValueId result) { return graph().is_used(result); }))
      graph().erase_node(id);
  llvm::erase_if(graph().states, [&](const State& state) { return !graph().is_used(state.value); });
}

}  // namespace plimsoll
