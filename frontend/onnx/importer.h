#pragma once

// Walks the nodes of a model. Holds scopes of names, inlined functions and subgraphs, states and obstacles.

#include "frontend/onnx/exported_adapters.h"
#include "frontend/onnx/folded_parameters.h"
#include "frontend/onnx/masked_writes.h"
#include "frontend/onnx/node_context.h"
#include "frontend/onnx/provenance.h"
#include "frontend/onnx/quantised_weights.h"

namespace plimsoll {

// The names that one ONNX graph can use: its own and those of the graphs around it.
struct Scope {
  Scope* outer = nullptr;
  int64_t opset = 0;
  llvm::StringMap<Item> items;

  const Item* find(llvm::StringRef name) const;
};

class Importer {
 public:
  Importer(const Model& model, const ImportOptions& options);

  Imported run();

  // Import functions call these through NodeContext.
  const Model& model() const { return model_; }
  const ImportOptions& options() const { return options_; }
  Graph& graph() { return imported_.graph; }
  const Graph& graph() const { return imported_.graph; }
  // Computes the results at once if all operands are constants. The error does not name the node.
  Result<ValueList> emit(const OpDef& op, llvm::ArrayRef<ValueId> operands, Attrs attrs, llvm::StringRef name);
  // Returns the graph inputs that a value is computed from.
  std::vector<std::string> inputs_behind(ValueId value) const;
  // Return the random counter, a state made on first use, and a distinct number per op that draws.
  ValueId random_counter();
  int64_t next_random_id() { return random_ids_++; }
  // The current value of a state in this graph, and its value at the end of the step.
  ValueId state_so_far(ValueId state) const;
  void update_state(ValueId state, ValueId next);
  // Returns the initializer that a state has its values from, or null.
  const Weight* weight_behind(ValueId value) const;
  // Returns the stored value of a small state for a node that must know it now, or null.
  TensorRef stored_value(ValueId value) const;
  void mark_buffer(ValueId value);  // makes a state untrainable; does nothing for other values
  bool is_state(ValueId value) const { return graph().find_state(value) != nullptr; }
  // Imports a subgraph of the current node with its inputs bound. Returns its outputs, all Unknown after an obstacle.
  std::vector<Item> run_subgraph(const onnx::GraphProto& body, llvm::ArrayRef<Item> arguments);

 private:
  void bind_dims();
  void add_input(const onnx::ValueInfoProto& input);
  void add_outputs();
  void note_folded_batch_norms();
  void note_lost_parameters();
  void dce();

  std::optional<Type> declared_type(const onnx::ValueInfoProto& info);
  // Returns null and adds an obstacle if there is no such name.
  const Item* look_up(llvm::StringRef name, Scope& scope, llvm::StringRef reader);
  Item initializer_item(const Weight& weight);
  // A matrix of an adapter, or a parameter saved with it.
  ValueId adapter_state(const ExportedParameter& parameter);
  // What the node reads in place of input i, where that is such a matrix.
  std::optional<Item> adapter_item(const onnx::NodeProto& node, int input);
  // DoRA's factor of a module, and what the node reads in place of input i, where that is one.
  ValueId adapter_factor(const ExportedFactor& factor, const onnx::NodeProto& node);
  std::optional<Item> factor_item(const onnx::NodeProto& node, int input);
  bool is_parameter(const Weight& weight) const;
  std::string transposed_from(const Weight& copy) const;

  void import_nodes(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes, Scope& scope);
  void import_node(const onnx::NodeProto& node, Scope& scope);
  // Imports a write to the places of a mask that is not known now, and passes over what has no size for that reason.
  // Returns whether the node is one of these.
  bool import_masked_write(const onnx::NodeProto& node, llvm::ArrayRef<Item> inputs, Scope& scope);
  void run_row(const struct ImportRow& row, const onnx::NodeProto& node, llvm::ArrayRef<Item> inputs, Scope& scope);
  void inline_function(const onnx::FunctionProto& function, const onnx::NodeProto& node, llvm::ArrayRef<Item> inputs,
                       Scope& scope);
  void define_stand_ins(const onnx::NodeProto& node, Scope& scope);
  void define(llvm::StringRef name, Item item, Scope& scope);
  void add_obstacle(Obstacle::Kind kind, llvm::StringRef subject, const llvm::Twine& message,
                    llvm::StringRef node = "");

  const Model& model_;
  const ImportOptions& options_;
  Imported imported_;
  Builder builder_;
  std::optional<WeightSource> weights_;
  ExportSignature signature_;
  FoldedParameters folded_;
  ExportedAdapters adapters_;
  MaskedWrites masked_writes_;
  llvm::StringSet<> quantised_;  // initializers that are codes, scales or zero points of weights
  llvm::StringMap<int64_t> dims_;
  bool dims_are_guessed_ = false;                          // some dimensions are not bound and count as 1
  llvm::StringMap<const onnx::ValueInfoProto*> declared_;  // types that the main graph declares
  llvm::StringMap<const onnx::FunctionProto*> functions_;  // "domain:name"
  llvm::StringMap<size_t> obstacle_at_;                    // the key is kind and subject
  llvm::StringMap<ValueList> constants_;                   // the key is constant_key()
  Scope main_;
  Scope* current_ = nullptr;               // scope of the node being imported
  const onnx::NodeProto* node_ = nullptr;  // being imported
  OriginId node_origin_ = OriginId::None;  // made when the node emits its first op
  int nesting_ = 0;                        // depth of functions and subgraphs
  int64_t visited_nodes_ = 0;              // those of functions and subgraphs each time
  ValueId counter_ = ValueId::None;
  int64_t random_ids_ = 0;
};

// Returns the node's name, such as "/decoder/attn/MatMul", or its first output's name.
std::string node_name(const onnx::NodeProto& node);

}  // namespace plimsoll
