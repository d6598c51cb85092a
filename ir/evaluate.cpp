#include "ir/evaluate.h"

#include "ir/awaited.h"

#include <algorithm>
#include <deque>

namespace plimsoll {
namespace {

llvm::SmallVector<TensorView, 4> views_of(llvm::ArrayRef<const Tensor*> tensors) {
  llvm::SmallVector<TensorView, 4> views;
  for (const Tensor* tensor : tensors) views.push_back(tensor ? tensor->view() : TensorView());
  return views;
}

std::vector<Tensor> make_results(llvm::ArrayRef<Type> types, llvm::SmallVector<TensorView, 4>& views) {
  std::vector<Tensor> results(types.begin(), types.end());
  for (const Tensor& result : results) views.push_back(result.view());
  return results;
}

using Operands = llvm::SmallVector<const Tensor*, 4>;

Result<std::vector<Tensor>> run_reference(const OpDef& op, const OpCall& call, llvm::ArrayRef<const Tensor*> operands,
                                          llvm::ArrayRef<Type> types) {
  llvm::SmallVector<TensorView, 4> reads = views_of(operands), writes;
  std::vector<Tensor> results = make_results(types, writes);
  if (Status s = op.reference(ReferenceCall(call, reads, writes))) return in_context(op.name, std::move(s));
  return results;
}

// The values of one rank, with their uses counted down.
class RankValues {
 public:
  RankValues(const Graph& graph, const Bindings& bindings, Keep keep)
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

  Operands operands_of(const Node& node) const {
    Operands operands;
    for (ValueId operand : node.operands) operands.push_back(find(operand));
    return operands;
  }

  void finish(const Node& node, std::vector<Tensor> results) {
    for (ValueId operand : node.operands)
      if (operand != ValueId::None) release(operand);
    for (auto [id, tensor] : llvm::zip(node.results, results))
      if (keep_ == Keep::EveryValue || uses_left_[index_of(id)] > 0) values_[index_of(id)] = std::move(tensor);
  }

  Evaluation take_all() {
    Evaluation evaluation;
    for (const Output& output : graph_.outputs) evaluation.outputs.push_back(take(output.value));
    for (const Update& update : graph_.updates) evaluation.updates.push_back(take(update.value));
    if (keep_ == Keep::EveryValue) evaluation.values = std::move(values_);
    return evaluation;
  }

 private:
  const Tensor* find(ValueId id) const {
    if (id == ValueId::None) return nullptr;
    const Tensor* bound = bound_[index_of(id)];
    return bound ? bound : &values_[index_of(id)];
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

class Interpreter {
 public:
  Interpreter(const Graph& graph, const Mesh& mesh, llvm::ArrayRef<Bindings> bindings, Keep keep)
      : graph_(graph), mesh_(mesh) {
    for (const Bindings& rank : bindings) ranks_.emplace_back(graph, rank, keep);
  }

  Result<std::vector<Evaluation>> run() {
    if (Status s = check_bindings()) return s;
    for (NodeId id = graph_.first_node(); id != NodeId::None; id = graph_.next_node(id))
      if (Status s = run_node(id)) return s;
    return take_all();
  }

  Status check_bindings() const {
    for (const RankValues& rank : ranks_)
      if (Status s = rank.check_bindings()) return s;
    return Status::success();
  }

  Status run_node(NodeId id) {
    const Node& node = graph_.node(id);
    const bool together = node.op->collective && node.attrs.get_int("ranks") > 1;
    if (Status s = together ? run_together(node) : run_apart(node))
      return in_context(graph_.value(node.results.front()).name, std::move(s));
    return Status::success();
  }

  std::vector<Evaluation> take_all() {
    std::vector<Evaluation> evaluations;
    for (RankValues& rank : ranks_) evaluations.push_back(rank.take_all());
    return evaluations;
  }

  const Graph& graph() const { return graph_; }
  std::vector<RankValues>& ranks() { return ranks_; }

 private:
  Status run_apart(const Node& node) {
    const llvm::SmallVector<const Type*, 4> types = operand_types(graph_, node);
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const Attrs attrs = attrs_of_rank(node.attrs, mesh_, static_cast<int64_t>(rank));
      Result<std::vector<Tensor>> results = run_reference(*node.op, OpCall(*node.op, attrs, types),
                                                          ranks_[rank].operands_of(node), result_types(graph_, node));
      if (!results) return results.takeError();
      ranks_[rank].finish(node, std::move(*results));
    }
    return Status::success();
  }

  // Each group in turn: the ranks that differ along the node's axis alone.
  Status run_together(const Node& node) {
    const std::optional<MeshAxis> axis = parse_axis(node.attrs.get_string("axis"));
    if (mesh_[*axis] != node.attrs.get_int("ranks"))
      return usage_error(node.op->name + ": is of " + llvm::Twine(node.attrs.get_int("ranks")) + " ranks along " +
                         axis_name(*axis) + ", the mesh has " + llvm::Twine(mesh_[*axis]));
    for (int64_t first = 0; first < mesh_.ranks(); ++first)
      if (mesh_.coordinate(first, *axis) == 0)
        if (Status s = run_group(node, mesh_.group_of(first, *axis))) return s;
    return Status::success();
  }

  Status run_group(const Node& node, llvm::ArrayRef<int64_t> group) {
    const std::vector<size_t> members(group.begin(), group.end());
    const llvm::SmallVector<const Type*, 4> types = operand_types(graph_, node);
    const OpCall call(*node.op, node.attrs, types);
    std::vector<llvm::SmallVector<TensorView, 4>> reads, writes(members.size());
    std::vector<std::vector<Tensor>> results;
    std::vector<ReferenceCall> calls;
    for (size_t i = 0; i < members.size(); ++i) {
      reads.push_back(views_of(ranks_[members[i]].operands_of(node)));
      results.push_back(make_results(result_types(graph_, node), writes[i]));
    }
    for (size_t i = 0; i < members.size(); ++i) calls.emplace_back(call, reads[i], writes[i]);
    node.op->collective(calls);
    for (size_t i = 0; i < members.size(); ++i) ranks_[members[i]].finish(node, std::move(results[i]));
    return Status::success();
  }

  const Graph& graph_;
  const Mesh& mesh_;
  std::vector<RankValues> ranks_;
};

// Each stage's graph runs until it waits for another stage; what is sent waits until it is received.
class StageInterpreter {
 public:
  StageInterpreter(llvm::ArrayRef<const Graph*> stages, const Mesh& mesh, llvm::ArrayRef<Bindings> bindings)
      : inner_(mesh) {
    inner_[MeshAxis::Stage] = 1;
    const auto ranks = static_cast<size_t>(inner_.ranks());
    for (size_t i = 0; i < stages.size(); ++i) {
      stages_.emplace_back(*stages[i], inner_, bindings.slice(i * ranks, ranks), Keep::Results);
      next_.push_back(stages[i]->first_node());
    }
  }

  Result<std::vector<Evaluation>> run() {
    for (const Interpreter& stage : stages_)
      if (Status s = stage.check_bindings()) return s;
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t stage = 0; stage < stages_.size(); ++stage) {
        Result<bool> ran = advance(stage);
        if (!ran) return in_context("stage " + llvm::Twine(stage), ran.takeError());
        moved |= *ran;
      }
      moved |= add_up();
    }
    std::vector<Evaluation> all;
    for (size_t stage = 0; stage < stages_.size(); ++stage) {
      if (next_[stage] != NodeId::None)
        return model_error("stage " + llvm::Twine(stage) + " waits for ever at " +
                           name_of(stage, node_at(stage).results.front()));
      std::vector<Evaluation> some = stages_[stage].take_all();
      std::move(some.begin(), some.end(), std::back_inserter(all));
    }
    return all;
  }

 private:
  const Node& node_at(size_t stage) const { return stages_[stage].graph().node(next_[stage]); }
  std::string name_of(size_t stage, ValueId value) const { return stages_[stage].graph().value(value).name; }

  // Runs nodes until the next one waits.
  Result<bool> advance(size_t stage) {
    const NodeId first = next_[stage];
    for (NodeId& id = next_[stage]; id != NodeId::None; id = stages_[stage].graph().next_node(id)) {
      const Node& node = node_at(stage);
      if (!is_awaited(node)) {
        if (Status s = stages_[stage].run_node(id)) return s;
      } else if (node.op->collective || !pass_on(stage, node)) {
        break;
      }
    }
    return next_[stage] != first;
  }

  // Sends, or receives where everything is there.
  bool pass_on(size_t stage, const Node& node) {
    const auto peer = static_cast<size_t>(node.attrs.get_int("peer"));
    std::vector<RankValues>& ranks = stages_[stage].ranks();
    const bool sends = !node.operands.empty();
    std::deque<std::vector<Tensor>>& mail = sends ? mail_[{stage, peer}] : mail_[{peer, stage}];
    if (sends) {
      std::vector<Tensor>& values = mail.emplace_back();
      for (RankValues& rank : ranks) values.push_back(*rank.operands_of(node).front());
    } else if (mail.empty()) {
      return false;
    }
    for (size_t i = 0; i < ranks.size(); ++i) {
      std::vector<Tensor> result;
      result.push_back(sends ? Tensor(Type(DType::U8, {})) : std::move(mail.front()[i]));
      ranks[i].finish(node, std::move(result));
    }
    if (!sends) mail.pop_front();
    return true;
  }

  // Once every stage has come to a collective of stages.
  bool add_up() {
    for (size_t stage = 0; stage < stages_.size(); ++stage)
      if (next_[stage] == NodeId::None || !node_at(stage).op->collective) return false;
    for (size_t i = 0; i < stages_.front().ranks().size(); ++i) {
      std::vector<const Node*> nodes;
      std::vector<RankValues*> members;
      for (size_t stage = 0; stage < stages_.size(); ++stage) {
        nodes.push_back(&node_at(stage));
        members.push_back(&stages_[stage].ranks()[i]);
      }
      run_members(nodes, members);
    }
    for (size_t stage = 0; stage < stages_.size(); ++stage)
      next_[stage] = stages_[stage].graph().next_node(next_[stage]);
    return true;
  }

  void run_members(llvm::ArrayRef<const Node*> nodes, llvm::ArrayRef<RankValues*> members) const {
    const Graph& first = stages_.front().graph();
    const llvm::SmallVector<const Type*, 4> types = operand_types(first, *nodes.front());
    const OpCall call(*nodes.front()->op, nodes.front()->attrs, types);
    const Types results = result_types(first, *nodes.front());
    std::vector<llvm::SmallVector<TensorView, 4>> reads, writes(members.size());
    std::vector<std::vector<Tensor>> made;
    for (size_t i = 0; i < members.size(); ++i) {
      reads.push_back(views_of(members[i]->operands_of(*nodes[i])));
      made.push_back(make_results(results, writes[i]));
    }
    std::vector<ReferenceCall> calls;
    for (size_t i = 0; i < members.size(); ++i) calls.emplace_back(call, reads[i], writes[i]);
    nodes.front()->op->collective(calls);
    for (size_t i = 0; i < members.size(); ++i) members[i]->finish(*nodes[i], std::move(made[i]));
  }

  Mesh inner_;  // of the ranks of one stage
  std::deque<Interpreter> stages_;
  std::vector<NodeId> next_;                                                   // by stage; None: it is through
  std::map<std::pair<size_t, size_t>, std::deque<std::vector<Tensor>>> mail_;  // by sender and receiver: by rank
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
  Result<std::vector<Evaluation>> run = evaluate_on_ranks(graph, Mesh(), bindings, keep);
  if (!run) return run.takeError();
  return std::move(run->front());
}

Result<std::vector<Evaluation>> evaluate_on_ranks(const Graph& graph, const Mesh& mesh,
                                                  llvm::ArrayRef<Bindings> bindings, Keep keep) {
  return Interpreter(graph, mesh, bindings, keep).run();
}

Result<std::vector<Evaluation>> evaluate_on_stages(llvm::ArrayRef<const Graph*> stages, const Mesh& mesh,
                                                   llvm::ArrayRef<Bindings> bindings) {
  return StageInterpreter(stages, mesh, bindings).run();
}

Attrs attrs_of_rank(const Attrs& attrs, const Mesh& mesh, int64_t rank) {
  const int64_t data = mesh.coordinate(rank, MeshAxis::Data), tensor = mesh.coordinate(rank, MeshAxis::Tensor);
  const int64_t draws = data * attrs.get_int("draws_per_rank") + tensor * attrs.get_int("draws_per_part");
  const int64_t all_classes = attrs.get_int("all_classes");
  if (draws == 0 && all_classes == 0) return attrs;
  Attrs own = attrs;
  if (draws != 0) own.set("first_draw", attrs.get_int("first_draw") + draws);
  if (all_classes != 0) {
    const int64_t part = attrs.get_int("classes");
    own.set("classes", std::clamp<int64_t>(all_classes - tensor * part, 0, part));
  }
  return own;
}

}  // namespace plimsoll
