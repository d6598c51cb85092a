#include "frontend/onnx/importer.h"

// Walks the nodes, functions and subgraphs of a model. import_boundary.cpp imports inputs, states and outputs.

#include "frontend/onnx/constant_cache.h"
#include "frontend/onnx/import_rows.h"
#include "frontend/onnx/node_order.h"
#include "ir/fold.h"

#include "llvm/ADT/ScopeExit.h"

namespace plimsoll {
namespace {

constexpr int deepest_nesting = 64;  // of functions and subgraphs
// A few functions that call each other twice have more nodes than there is time for. Models of 100 layers have 20,000.
constexpr int64_t max_visited_nodes = 1 << 18;

std::string qualified_op(const onnx::NodeProto& node) {
  return is_standard_domain(node.domain()) ? node.op_type() : node.domain() + ":" + node.op_type();
}

// Replaces references to a function's attributes, in its nodes and their subgraphs, by the caller's values.
void bind_attributes(onnx::NodeProto& node, const llvm::StringMap<const onnx::AttributeProto*>& values) {
  for (int i = node.attribute_size(); i-- > 0;) {
    onnx::AttributeProto& attribute = *node.mutable_attribute(i);
    if (!attribute.ref_attr_name().empty()) {
      auto at = values.find(attribute.ref_attr_name());
      if (at == values.end()) {
        node.mutable_attribute()->DeleteSubrange(i, 1);  // the caller did not give it, so the operator's default holds
        continue;
      }
      std::string name = attribute.name();
      attribute = *at->second;
      attribute.set_name(name);
    }
    if (attribute.has_g())
      for (onnx::NodeProto& inner : *attribute.mutable_g()->mutable_node()) bind_attributes(inner, values);
  }
}

// A damaged file may ask for any size; arithmetic on sizes must not overflow.
Status check_size(const Graph& graph, NodeId node) {
  for (ValueId result : graph.node(node).results)
    if (!is_countable(graph.type(result).shape))
      return model_error("a result of " + to_string(graph.type(result)) + " is too large");
  return Status::success();
}

}  // namespace

std::string node_name(const onnx::NodeProto& node) {
  if (!node.name().empty()) return node.name();
  return node.output_size() > 0 ? node.op_type() + " of " + node.output(0) : node.op_type();
}

const Item* Scope::find(llvm::StringRef name) const {
  for (const Scope* scope = this; scope; scope = scope->outer)
    if (auto at = scope->items.find(name); at != scope->items.end()) return &at->second;
  return nullptr;
}

void Importer::add_obstacle(Obstacle::Kind kind, llvm::StringRef subject, const llvm::Twine& message,
                            llvm::StringRef node) {
  std::string key = (llvm::Twine(static_cast<int>(kind)) + ":" + subject).str();
  std::vector<Obstacle>& all = imported_.report.obstacles;
  auto [at, fresh] = obstacle_at_.try_emplace(key, all.size());
  if (fresh) all.push_back({kind, subject.str(), message.str(), {}});
  if (!node.empty()) all[at->second].nodes.push_back(node.str());
}

void Importer::define(llvm::StringRef name, Item item, Scope& scope) {
  if (name.empty()) return;
  if (!scope.items.try_emplace(name, std::move(item)).second)
    add_obstacle(Obstacle::Kind::BadModel, name, name + ": two nodes produce this value");
}

const Item* Importer::look_up(llvm::StringRef name, Scope& scope, llvm::StringRef reader) {
  if (const Item* item = scope.find(name)) return item;
  if (weights_)
    if (const Weight* weight = weights_->find(name)) {
      define(name, initializer_item(*weight), main_);
      return main_.find(name);
    }
  add_obstacle(Obstacle::Kind::BadModel, name, reader + ": reads '" + name + "', which nothing produces");
  return nullptr;
}

Result<ValueList> Importer::emit(const OpDef& op, llvm::ArrayRef<ValueId> operands, Attrs attrs, llvm::StringRef name) {
  std::optional<std::string> key;
  if (llvm::all_of(operands, [&](ValueId value) { return value == ValueId::None || find_constant(graph(), value); }))
    key = constant_key(op.name, operands, attrs);
  if (key)
    if (auto known = constants_.find(*key); known != constants_.end()) return known->second;
  Result<NodeId> id = builder_.create(op, operands, std::move(attrs), std::vector<std::string>(4, name.str()));
  if (!id) return id.takeError();
  if (Status s = check_size(graph(), *id)) return s;
  Result<llvm::SmallVector<ValueId, 2>> folded = fold_node(graph(), *id);
  if (!folded) return folded.takeError();
  const auto& results = folded->empty() ? graph().node(*id).results : *folded;
  ValueList values(results.begin(), results.end());
  if (key) constants_[*key] = values;
  if (folded->empty() && op.name != "constant") {
    if (node_ && node_origin_ == OriginId::None) node_origin_ = graph().add_origin(origin_of(*node_));
    graph().node(*id).origin = node_origin_;
  }
  return values;
}

void Importer::import_nodes(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes, Scope& scope) {
  Result<std::vector<int>> order = order_nodes(nodes);
  if (!order) {
    add_obstacle(Obstacle::Kind::BadModel, "cycle", take_diag(order.takeError()).text());
    for (const onnx::NodeProto& node : nodes)
      for (const std::string& name : node.output()) define(name, Item::unknown(), scope);
    return;
  }
  for (int i : *order) import_node(nodes.Get(i), scope);
}

void Importer::import_node(const onnx::NodeProto& node, Scope& scope) {
  if (++visited_nodes_ > max_visited_nodes) {
    if (visited_nodes_ == max_visited_nodes + 1)
      add_obstacle(Obstacle::Kind::BadModel, "size",
                   "its functions and loops unroll to more than " + llvm::Twine(max_visited_nodes) + " nodes");
    for (const std::string& name : node.output()) define(name, Item::unknown(), scope);
    return;
  }
  if (adapters_.unread.count(&node) > 0) return;
  llvm::SmallVector<Item, 4> inputs;
  bool known = true;
  for (const std::string& name : node.input()) {
    if (std::optional<Item> adapter = adapter_item(node, static_cast<int>(inputs.size()))) {
      known &= adapter->kind != Item::Kind::Unknown;
      inputs.push_back(std::move(*adapter));
      continue;
    }
    const Item* item = nullptr;
    if (!name.empty()) item = look_up(name, scope, node_name(node));
    known &= name.empty() || (item && item->kind != Item::Kind::Unknown);
    inputs.push_back(item ? *item : Item());
  }
  std::string op = qualified_op(node);
  const ImportRow* row = find_import_row(op, scope.opset);
  auto function = functions_.find((node.domain() + ":" + node.op_type()));
  if (!row && function == functions_.end()) {
    bool other_form = find_import_row(op, INT64_MAX) != nullptr;
    add_obstacle(
        Obstacle::Kind::UnsupportedOp, op,
        "operator " + op + (other_form ? " of opset " + std::to_string(scope.opset) : "") + " is not supported",
        node_name(node));
    return define_stand_ins(node, scope);
  }
  auto restore = llvm::make_scope_exit([this, node = node_, origin = node_origin_, current = current_] {
    node_ = node;
    node_origin_ = origin;
    current_ = current;
  });
  node_ = &node;
  node_origin_ = OriginId::None;
  current_ = &scope;
  if (import_masked_write(node, inputs, scope)) return;
  if (!known) {
    for (const std::string& name : node.output()) define(name, Item::unknown(), scope);
    return;
  }
  if (row)
    run_row(*row, node, inputs, scope);
  else
    inline_function(*function->second, node, inputs, scope);
}

bool Importer::import_masked_write(const onnx::NodeProto& node, llvm::ArrayRef<Item> inputs, Scope& scope) {
  if (masked_writes_.sizeless.count(&node) > 0 && !inputs.empty() && inputs.back().kind == Item::Kind::Tensor &&
      !find_constant(graph(), inputs.back().tensor)) {
    for (const std::string& name : node.output()) define(name, Item::unknown(), scope);
    return true;
  }
  const auto found = masked_writes_.by_scatter.find(&node);
  if (found == masked_writes_.by_scatter.end() || inputs[1].kind != Item::Kind::Unknown) return false;
  const Item *mask = look_up(found->second.mask, scope, node_name(node)), *values = nullptr;
  if (mask) values = look_up(found->second.values, scope, node_name(node));
  for (const Item* item : {&inputs.front(), mask, values})
    if (!item || item->kind != Item::Kind::Tensor) return false;
  run_row(masked_write_row(found->second.form), node, {inputs.front(), *mask, *values}, scope);
  return true;
}

void Importer::run_row(const ImportRow& row, const onnx::NodeProto& node, llvm::ArrayRef<Item> inputs, Scope& scope) {
  NodeContext n(*this, node, row, scope.opset, inputs);
  row.import(n);
  for (size_t i = 0; i < n.output_count(); ++i)
    if (n.wants(i) && !n.is_given(i))
      n.fail("its output " + llvm::Twine(i) + " (" + node.output(static_cast<int>(i)) + ") is not supported");
  if (!n.failed()) {
    for (auto [name, item] : llvm::zip(node.output(), n.outputs())) define(name, item, scope);
    return;
  }
  std::string message = node_name(node) + ": " + n.failure();
  // While dimensions are unbound, shapes are guesses, and a failure says nothing about the model.
  if (!dims_are_guessed_) {
    for (const std::string& input : n.undecided_inputs())
      add_obstacle(Obstacle::Kind::DataDependent, input, message, node_name(node));
    if (n.undecided_inputs().empty()) add_obstacle(Obstacle::Kind::BadNode, node_name(node), message, node_name(node));
  }
  define_stand_ins(node, scope);
}

void Importer::inline_function(const onnx::FunctionProto& function, const onnx::NodeProto& node,
                               llvm::ArrayRef<Item> inputs, Scope& scope) {
  if (nesting_ >= deepest_nesting) {
    add_obstacle(Obstacle::Kind::BadModel, function.name(), function.name() + ": the function calls itself");
    return define_stand_ins(node, scope);
  }
  llvm::StringMap<const onnx::AttributeProto*> values;
  for (const onnx::AttributeProto& attribute : function.attribute_proto()) values[attribute.name()] = &attribute;
  for (const onnx::AttributeProto& attribute : node.attribute()) values[attribute.name()] = &attribute;
  google::protobuf::RepeatedPtrField<onnx::NodeProto> body = function.node();
  for (onnx::NodeProto& inner : body) {
    bind_attributes(inner, values);
    if (inner.metadata_props_size() == 0) *inner.mutable_metadata_props() = node.metadata_props();
    inner.set_name(node_name(node) + "/" + (inner.name().empty() ? inner.op_type() : inner.name()));
  }

  Scope inside{nullptr, scope.opset, {}};
  for (const auto& entry : function.opset_import())
    if (is_standard_domain(entry.domain())) inside.opset = entry.version();
  for (int i = 0; i < function.input_size(); ++i)
    define(function.input(i), static_cast<size_t>(i) < inputs.size() ? inputs[i] : Item(), inside);
  ++nesting_;
  import_nodes(body, inside);
  --nesting_;
  for (int i = 0; i < node.output_size() && i < function.output_size(); ++i) {
    const Item* item = inside.find(function.output(i));
    define(node.output(i), item ? *item : Item::unknown(), scope);
  }
}

std::vector<Item> Importer::run_subgraph(const onnx::GraphProto& body, llvm::ArrayRef<Item> arguments) {
  std::vector<Item> unknown(static_cast<size_t>(body.output_size()), Item::unknown());
  if (nesting_ >= deepest_nesting) return unknown;
  Scope inside{current_, current_->opset, {}};
  for (const onnx::TensorProto& initializer : body.initializer()) {
    Result<Tensor> value = tensor_from_onnx(initializer, model_.data());
    if (!value) {
      add_obstacle(Obstacle::Kind::BadModel, initializer.name(), take_diag(value.takeError()).text());
      return unknown;
    }
    define(initializer.name(), Item::of(builder_.constant(std::move(*value), initializer.name())), inside);
  }
  for (int i = 0; i < body.input_size() && static_cast<size_t>(i) < arguments.size(); ++i)
    if (!inside.items.count(body.input(i).name())) define(body.input(i).name(), arguments[i], inside);
  ++nesting_;
  import_nodes(body.node(), inside);
  --nesting_;
  std::vector<Item> outputs;
  for (const auto& output : body.output()) {
    const Item* item = look_up(output.name(), inside, body.name());
    outputs.push_back(item ? *item : Item::unknown());
  }
  return outputs;
}

void Importer::define_stand_ins(const onnx::NodeProto& node, Scope& scope) {
  for (const std::string& name : node.output()) {
    auto info = &scope == &main_ && !dims_are_guessed_ ? declared_.find(name) : declared_.end();
    std::optional<Type> type;
    if (info != declared_.end()) type = declared_type(*info->second);
    define(name, type ? Item::of(graph().add_input(name, *type)) : Item::unknown(), scope);
  }
}

std::vector<std::string> Importer::inputs_behind(ValueId value) const {
  std::vector<std::string> names;
  llvm::SmallVector<ValueId, 16> pending{value};
  std::vector<bool> seen(graph().value_count());
  while (!pending.empty()) {
    ValueId next = pending.pop_back_val();
    if (next == ValueId::None || seen[index_of(next)]) continue;
    seen[index_of(next)] = true;
    if (llvm::is_contained(graph().inputs, next)) names.push_back(graph().value(next).name);
    if (NodeId producer = graph().value(next).producer; producer != NodeId::None)
      pending.append(graph().node(producer).operands.begin(), graph().node(producer).operands.end());
  }
  llvm::sort(names);
  return names;
}

}  // namespace plimsoll
