#pragma once

// The walk over a model's nodes: scopes of names, inlined functions and subgraphs, states, obstacles.

#include "frontend/onnx/folded_parameters.h"
#include "frontend/onnx/node_context.h"
#include "frontend/onnx/provenance.h"

namespace plimsoll {

// The names one ONNX graph can see: its own and those of the graphs around it.
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

  // For rows, through NodeContext.
  const Model& model() const { return model_; }
  const ImportOptions& options() const { return options_; }
  Graph& graph() { return imported_.graph; }
  const Graph& graph() const { return imported_.graph; }
  // Results are computed at once where the operands are constants. The error carries no node name.
  Result<ValueList> emit(const OpDef& op, llvm::ArrayRef<ValueId> operands, Attrs attrs, llvm::StringRef name);
  // Graph inputs that a value is computed from.
  std::vector<std::string> inputs_behind(ValueId value) const;
  // The random counter, a state made on first use, and a number for each op that draws.
  ValueId random_counter();
  int64_t next_random_id() { return random_ids_++; }
  // What a state has become so far in this graph, and what it becomes at the end of the step.
  ValueId state_so_far(ValueId state) const;
  void update_state(ValueId state, ValueId next);
  // The stored value of a small state, for a node that must know it now; null when there is none.
  TensorRef stored_value(ValueId value) const;
  void mark_buffer(ValueId value);  // a state that is never trained; nothing for other values
  bool is_state(ValueId value) const { return graph().find_state(value) != nullptr; }
  // A subgraph of the node being imported, with its inputs bound. Outputs in order; all Unknown after an obstacle.
  std::vector<Item> run_subgraph(const onnx::GraphProto& body, llvm::ArrayRef<Item> arguments);

 private:
  void bind_dims();
  void add_input(const onnx::ValueInfoProto& input);
  void add_outputs();
  void note_folded_batch_norms();
  void note_lost_parameters();
  void dce();

  std::optional<Type> declared_type(const onnx::ValueInfoProto& info);
  // Null and an obstacle when there is no such name.
  const Item* look_up(llvm::StringRef name, Scope& scope, llvm::StringRef reader);
  Item initializer_item(const Weight& weight);
  bool is_parameter(const Weight& weight) const;
  std::string transposed_from(const Weight& copy) const;

  void import_nodes(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes, Scope& scope);
  void import_node(const onnx::NodeProto& node, Scope& scope);
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
  llvm::StringMap<int64_t> dims_;
  bool dims_are_guessed_ = false;                          // some are not bound and count as 1
  llvm::StringMap<const onnx::ValueInfoProto*> declared_;  // of the main graph's values
  llvm::StringMap<const onnx::FunctionProto*> functions_;  // "domain:name"
  llvm::StringMap<size_t> obstacle_at_;                    // by kind and subject
  llvm::StringMap<ValueList> constants_;                   // by constant_key
  Scope main_;
  Scope* current_ = nullptr;               // of the node being imported
  const onnx::NodeProto* node_ = nullptr;  // being imported
  OriginId node_origin_ = OriginId::None;  // made when it emits its first op
  int nesting_ = 0;                        // of functions and subgraphs
  ValueId counter_ = ValueId::None;
  int64_t random_ids_ = 0;
};

// "/decoder/attn/MatMul", or the first output's name for a node without one.
std::string node_name(const onnx::NodeProto& node);

}  // namespace plimsoll
