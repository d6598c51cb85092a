#include "ir/evaluate.h"

namespace plimsoll {
namespace {

Result<std::vector<Tensor>> run_reference(const OpDef& op, const OpCall& call, llvm::ArrayRef<const Tensor*> operands,
                                          llvm::ArrayRef<Type> types) {
  llvm::SmallVector<TensorView, 4> reads, writes;
  for (const Tensor* operand : operands) reads.push_back(operand ? operand->view() : TensorView());
  std::vector<Tensor> results;
  results.reserve(types.size());
  for (const Type& type : types) results.emplace_back(type);
  for (const Tensor& result : results) writes.push_back(result.view());
  if (Status s = op.reference(ReferenceCall(call, reads, writes))) return in_context(op.name, std::move(s));
  return results;
}

// Owns the values of one run and counts down their uses.
class Interpreter {
 public:
  Interpreter(const Graph& graph, const Bindings& bindings, Keep keep)
      : graph_(graph),
        keep_(keep),
        values_(graph.value_count()),
        bound_(graph.value_count()),
        uses_left_(graph.value_count()) {
    for (auto [value, tensor] : bindings) bound_[index_of(value)] = tensor;
    for (size_t i = 0; i < uses_left_.size(); ++i) uses_left_[i] = graph.value(static_cast<ValueId>(i)).users.size();
    for (const Output& output : graph.outputs) ++uses_left_[index_of(output.value)];
    for (const Update& update : graph.updates) ++uses_left_[index_of(update.value)];
  }

  Result<Evaluation> run() {
    if (Status s = check_bindings()) return s;
    for (NodeId id = graph_.first_node(); id != NodeId::None; id = graph_.next_node(id))
      if (Status s = run_node(graph_.node(id))) return s;
    Evaluation evaluation;
    for (const Output& output : graph_.outputs) evaluation.outputs.push_back(take(output.value));
    for (const Update& update : graph_.updates) evaluation.updates.push_back(take(update.value));
    if (keep_ == Keep::EveryValue) evaluation.values = std::move(values_);
    return evaluation;
  }

 private:
  Status check_bindings() const {
    auto check = [&](ValueId id, llvm::StringRef what) -> Status {
      const Value& value = graph_.value(id);
      const Tensor* tensor = bound_[index_of(id)];
      if (!tensor && uses_left_[index_of(id)] == 0) return Status::success();
      if (!tensor) return usage_error(what + " " + value.name + " has no value");
      if (tensor->type() != value.type)
        return usage_error(what + " " + value.name + " is " + to_string(value.type) + ", its value is " +
                           to_string(tensor->type()));
      return Status::success();
    };
    for (ValueId input : graph_.inputs)
      if (Status s = check(input, "input")) return s;
    for (const State& state : graph_.states)
      if (Status s = check(state.value, "state")) return s;
    return Status::success();
  }

  const Tensor* find(ValueId id) const {
    if (id == ValueId::None) return nullptr;
    const Tensor* bound = bound_[index_of(id)];
    return bound ? bound : &values_[index_of(id)];
  }

  Status run_node(const Node& node) {
    llvm::SmallVector<const Type*, 4> types = operand_types(graph_, node);
    llvm::SmallVector<const Tensor*, 4> operands;
    for (ValueId operand : node.operands) operands.push_back(find(operand));
    Result<std::vector<Tensor>> results =
        run_reference(*node.op, OpCall(*node.op, node.attrs, types), operands, result_types(graph_, node));
    if (!results) return in_context(graph_.value(node.results.front()).name, results.takeError());
    for (ValueId operand : node.operands)
      if (operand != ValueId::None) release(operand);
    for (auto [id, tensor] : llvm::zip(node.results, *results))
      if (keep_ == Keep::EveryValue || uses_left_[index_of(id)] > 0) values_[index_of(id)] = std::move(tensor);
    return Status::success();
  }

  void release(ValueId id) {
    if (--uses_left_[index_of(id)] == 0 && keep_ == Keep::Results) values_[index_of(id)] = Tensor();
  }

  // The last taker gets the bytes themselves, others a copy.
  Tensor take(ValueId id) {
    bool last = --uses_left_[index_of(id)] == 0 && keep_ == Keep::Results && !bound_[index_of(id)];
    return last ? std::move(values_[index_of(id)]) : *find(id);
  }

  const Graph& graph_;
  Keep keep_;
  std::vector<Tensor> values_;        // node results
  std::vector<const Tensor*> bound_;  // inputs and states
  std::vector<size_t> uses_left_;
};

}  // namespace

Result<std::vector<Tensor>> evaluate_node(const OpDef& op, const Attrs& attrs, llvm::ArrayRef<const Tensor*> operands) {
  llvm::SmallVector<const Type*, 4> types;
  for (const Tensor* operand : operands) types.push_back(operand ? &operand->type() : nullptr);
  OpCall call(op, attrs, types);
  Result<Types> results = infer(call);
  if (!results) return in_context(op.name, results.takeError());
  return run_reference(op, call, operands, *results);
}

Result<Evaluation> evaluate(const Graph& graph, const Bindings& bindings, Keep keep) {
  return Interpreter(graph, bindings, keep).run();
}

}  // namespace plimsoll
