#include "passes/partition/project_stages.h"

// Each stage's graph is what its sinks need of the values that have their place on it.
//
// Why no stage waits for ever: sends stand behind what makes them and receives before what reads them, and both in one
// order of all transfers, which a simulation of the schedule made (pipeline_schedule.h).

#include "passes/partition/function_on_stage.h"

#include <algorithm>
#include <optional>

namespace plimsoll {
namespace {

class Projector {
 public:
  Projector(const Program& program, const PipelineSplit& split,
            llvm::function_ref<double(const Graph&, const Node&, size_t stage)> us)
      : program_(program), split_(split), routes_(split.runs), us_(us) {}

  Result<std::vector<Program>> run() {
    for (const Graph& graph : program_.functions) {
      places_.emplace_back(graph, routes_, owners_);
      if (Status s = places_.back().find(owners_)) return s;
    }
    for (int32_t stage = 0; stage < split_.runs.stages; ++stage) stages_.push_back(need(stage));
    give_unread_states();
    if (Status s = check_owners()) return s;
    for (const Stage& stage : stages_) {
      std::vector<std::vector<NodeId>>& nodes = nodes_.emplace_back();
      for (const FunctionOnStage& function : stage.functions) nodes.push_back(function.nodes());
    }
    if (Status s = order_transfers()) return s;
    std::vector<Program> programs(static_cast<size_t>(split_.runs.stages));
    for (size_t stage = 0; stage < programs.size(); ++stage)
      for (size_t f = 0; f < program_.functions.size(); ++f)
        programs[stage].functions.push_back(
            stages_[stage].functions[f].make(stages_[stage].states, order_of(stage, f)));
    return programs;
  }

 private:
  struct Stage {
    std::vector<FunctionOnStage> functions;
    llvm::StringSet<> states;
  };

  // States ask for their next values, which may read further states, in any function.
  Stage need(int32_t stage) {
    Stage result;
    for (const auto& owned : owners_)
      if (routes_.stage_of(owned.second) == stage) result.states.insert(owned.first());
    for (size_t before = SIZE_MAX; before != result.states.size();) {
      before = result.states.size();
      result.functions.clear();
      for (size_t f = 0; f < program_.functions.size(); ++f) {
        FunctionOnStage& function = result.functions.emplace_back(program_.functions[f], places_[f], routes_, stage);
        function.need_sinks(result.states);
      }
      for (const FunctionOnStage& function : result.functions)
        for (const auto& state : function.states()) result.states.insert(state.first());
    }
    return result;
  }

  // The first stage keeps what nobody reads, so that the stages together have all states of the model.
  void give_unread_states() {
    llvm::StringSet<> read;
    for (const Stage& stage : stages_)
      for (const auto& state : stage.states) read.insert(state.first());
    for (const Graph& graph : program_.functions)
      for (const State& state : graph.states)
        if (const std::string& name = graph.value(state.value).name; !read.contains(name))
          stages_.front().states.insert(name);
    std::vector<FunctionOnStage>& functions = stages_.front().functions;
    for (FunctionOnStage& function : functions) {
      function.need_sinks(stages_.front().states);
      for (const auto& state : function.states()) stages_.front().states.insert(state.first());
    }
  }

  Status check_owners() const {
    if (are_owned()) return Status::success();
    for (int32_t stage = 0; stage < split_.runs.stages; ++stage)
      for (const Graph& graph : program_.functions)
        for (const State& state : graph.states) {
          const std::string& name = graph.value(state.value).name;
          const auto owner = owners_.find(name);
          if (owner == owners_.end() || routes_.stage_of(owner->second) == stage) continue;
          if (stages_[static_cast<size_t>(stage)].states.contains(name))
            return model_error("stages: stage " + llvm::Twine(stage) + " reads " + name + ", which stage " +
                               llvm::Twine(routes_.stage_of(owner->second)) + " updates");
        }
    return Status::success();
  }

  // Whether each stage has only states that it updates, or that no stage alone does.
  bool are_owned() const {
    for (size_t stage = 0; stage < stages_.size(); ++stage)
      for (const auto& state : stages_[stage].states)
        if (const auto owner = owners_.find(state.first());
            owner != owners_.end() && routes_.stage_of(owner->second) != static_cast<int32_t>(stage))
          return false;
    return true;
  }

  const Graph& step() const { return program_.functions.front(); }

  StageAction action_of(size_t stage, NodeId id) const {
    using Kind = StageAction::Kind;
    const Node& node = step().node(id);
    const int32_t micro_batch = split_.micro_batch_of[index_of(id)], run = run_of_[stage][index_of(id)];
    if (node.phase == Phase::Update) return {Kind::End};
    if (micro_batch < 0) return {Kind::Start};
    if (node.phase == Phase::Forward) return {Kind::Forward, micro_batch, run};
    return {sends_on_[stage][index_of(id)] ? Kind::Backward : Kind::Weights, micro_batch, run};
  }

  // By node: in which of the stage's runs it is. What each stage computes itself comes with the first that reads it.
  std::vector<int32_t> runs_of_nodes(size_t stage) const {
    std::vector<int32_t> runs(step().node_slots(), 0);
    if (split_.runs.per_stage == 1) return runs;
    auto run_on_stage = [&](int32_t run) { return static_cast<int32_t>(split_.runs.place_of(run)); };
    for (NodeId id = step().last_node(); id != NodeId::None; id = step().node(id).previous) {
      const Node& node = step().node(id);
      const int32_t place = places_.front().of(node.results.front());
      std::optional<int32_t> first;
      if (moves_between_runs(node) && routes_.sender_of(node) == static_cast<int32_t>(stage))
        first = run_on_stage(sending_run(node));
      else if (place != any_run)
        first = run_on_stage(place);
      else
        for (NodeId user : step().value(node.results.front()).users) {
          if (!takes_part(stage, user)) continue;
          const int32_t run = runs[index_of(user)];
          first = !first ? run : node.phase == Phase::Forward ? std::min(*first, run) : std::max(*first, run);
        }
      runs[index_of(id)] = first.value_or(0);
    }
    return runs;
  }

  // Does the stage compute, send or receive it?
  bool takes_part(size_t stage, NodeId id) const {
    return stages_[stage].functions.front().is_needed(id) || is_sent(stage, step().node(id));
  }
  bool is_sent(size_t stage, const Node& node) const {
    return routes_.is_transfer(node) && routes_.sender_of(node) == static_cast<int32_t>(stage);
  }

  // By node: is it what a gradient that goes on to another run is made of? Where backward is one action, all of it is.
  std::vector<bool> backward_for_others(int32_t stage) const {
    const bool together = !splits_backward(split_.runs.schedule);
    std::vector<bool> sends_on(step().node_slots(), together);
    for (NodeId id = step().last_node(); id != NodeId::None && !together; id = step().node(id).previous) {
      const Node& node = step().node(id);
      if (node.phase != Phase::Backward) continue;
      const bool moves = moves_between_runs(node), sends = moves && routes_.sender_of(node) == stage;
      if (!sends && (!sends_on[index_of(id)] || moves)) continue;
      sends_on[index_of(id)] = true;
      for (ValueId operand : node.operands)
        if (operand != ValueId::None && step().value(operand).producer != NodeId::None)
          sends_on[index_of(step().value(operand).producer)] = true;
    }
    return sends_on;
  }

  // Of a stage for one micro-batch.
  StageTimes times_of(size_t stage) const {
    StageTimes times{min_action_us, min_action_us, min_action_us};
    for (NodeId id : nodes_[stage].front()) {
      if (!stages_[stage].functions.front().is_needed(id) || routes_.is_transfer(step().node(id))) continue;
      const double us = us_(step(), step().node(id), stage) / static_cast<double>(split_.micro_batches);
      switch (action_of(stage, id).kind) {
        case StageAction::Kind::Forward: times.forward_us += us; break;
        case StageAction::Kind::Backward: times.backward_us += us; break;
        case StageAction::Kind::Weights: times.weights_us += us; break;
        case StageAction::Kind::Start:
        case StageAction::Kind::End: break;
      }
    }
    return times;
  }

  size_t place_of_action(size_t stage, const StageAction& action) const {
    return static_cast<size_t>(llvm::find(actions_[stage], action) - actions_[stage].begin());
  }

  // By node: the action in which the stage takes part in it, which is none before those of what it reads.
  std::vector<size_t> actions_of_nodes(size_t stage) const {
    std::vector<size_t> at(step().node_slots(), 0);
    for (NodeId id : nodes_[stage].front()) {
      const Node& node = step().node(id);
      if (routes_.is_transfer(node) && !is_sent(stage, node)) continue;  // its reader decides
      at[index_of(id)] = place_of_action(stage, action_of(stage, id));
      for (ValueId operand : node.operands)
        if (operand != ValueId::None && step().value(operand).producer != NodeId::None)
          at[index_of(id)] = std::max(at[index_of(id)], at[index_of(step().value(operand).producer)]);
    }
    return at;
  }

  // The action of the stage in which a received value is first read.
  size_t first_reading_action(size_t stage, NodeId transfer) const {
    size_t first = actions_[stage].size() - 1;
    for (NodeId user : step().value(step().node(transfer).results.front()).users)
      if (takes_part(stage, user)) first = std::min(first, action_at_[stage][index_of(user)]);
    return first;
  }

  Status order_transfers() {
    std::vector<std::vector<double>> us;
    std::vector<StageTimes> times;
    for (size_t stage = 0; stage < stages_.size(); ++stage) {
      sends_on_.push_back(backward_for_others(static_cast<int32_t>(stage)));
      run_of_.push_back(runs_of_nodes(stage));
      times.push_back(times_of(stage));
    }
    actions_ = actions_of_stages(split_.runs, times, split_.micro_batches);
    for (size_t stage = 0; stage < stages_.size(); ++stage) {
      us.emplace_back(actions_[stage].size(), min_action_us);
      action_at_.push_back(actions_of_nodes(stage));
    }
    std::vector<NodeId> ids;
    std::vector<StageTransfer> transfers;
    for (NodeId id : places_.front().transfers()) {
      const Node& node = step().node(id);
      const auto from = static_cast<size_t>(routes_.sender_of(node)),
                 to = static_cast<size_t>(routes_.receiver_of(node));
      ids.push_back(id);
      transfers.push_back(
          {from, action_at_[from][index_of(id)], to, std::max<size_t>(first_reading_action(to, id), 1)});
    }
    for (size_t stage = 0; stage < stages_.size(); ++stage)
      for (NodeId id : nodes_[stage].front())
        if (const Node& node = step().node(id); !routes_.is_transfer(node))
          us[stage][action_at_[stage][index_of(id)]] += us_(step(), node, stage);
    Result<std::vector<size_t>> order = order_of_transfers(us, transfers);
    if (!order) return order.takeError();
    for (size_t at : *order) transfers_.push_back(ids[at]);
    return Status::success();
  }

  std::vector<NodeId> order_of(size_t stage, size_t f) const;

  static constexpr double min_action_us = 1e-3;

  const Program& program_;
  const PipelineSplit& split_;
  Routes routes_;
  llvm::function_ref<double(const Graph&, const Node&, size_t stage)> us_;
  Owners owners_;
  std::vector<Places> places_;  // by function
  std::vector<Stage> stages_;
  std::vector<std::vector<std::vector<NodeId>>> nodes_;  // by stage and function: in which the stage takes part
  std::vector<std::vector<bool>> sends_on_;              // by stage, by node of backward
  std::vector<std::vector<int32_t>> run_of_;             // by stage, by node: which of the stage's runs
  std::vector<std::vector<StageAction>> actions_;        // by stage
  std::vector<std::vector<size_t>> action_at_;           // by stage, by node: its action
  std::vector<NodeId> transfers_;                        // of the step, in the order in which all stages make them
};

// The nodes of one stage's function in the order of its actions. What belongs to no micro-batch comes before its first
// reader, a receive before its first reader and before later sends.
class StageOrder {
 public:
  StageOrder(const Graph& graph, const FunctionOnStage& function, const Routes& routes, int32_t stage,
             llvm::ArrayRef<NodeId> transfers)
      : graph_(graph), function_(function), routes_(routes), stage_(stage), done_(graph.node_slots(), false) {
    for (NodeId id : transfers)
      if (routes.sender_of(graph.node(id)) == stage || routes.receiver_of(graph.node(id)) == stage)
        transfers_.push_back(id);
  }

  void emit(NodeId id) {
    if (done_[index_of(id)]) return;
    done_[index_of(id)] = true;
    const Node& node = graph_.node(id);
    if (!is_received(node))
      for (ValueId operand : node.operands) {
        const NodeId producer = operand == ValueId::None ? NodeId::None : graph_.value(operand).producer;
        if (producer != NodeId::None && function_.is_needed(producer) && function_.is_here(operand)) emit(producer);
      }
    if (routes_.is_transfer(node)) emit_receives_until(id);
    order_.push_back(id);
  }

  std::vector<NodeId> take() { return std::move(order_); }

 private:
  bool is_received(const Node& node) const { return routes_.is_transfer(node) && routes_.receiver_of(node) == stage_; }

  void emit_receives_until(NodeId id) {
    const size_t at = static_cast<size_t>(llvm::find(transfers_, id) - transfers_.begin());
    for (; next_ < at; ++next_) {
      const NodeId earlier = transfers_[next_];
      if (done_[index_of(earlier)] || !is_received(graph_.node(earlier))) continue;
      done_[index_of(earlier)] = true;
      order_.push_back(earlier);
    }
  }

  const Graph& graph_;
  const FunctionOnStage& function_;
  const Routes& routes_;
  int32_t stage_;
  std::vector<bool> done_;         // by node
  std::vector<NodeId> transfers_;  // the stage's, in order
  size_t next_ = 0;                // of transfers_: those before are in the order
  std::vector<NodeId> order_;
};

std::vector<NodeId> Projector::order_of(size_t stage, size_t f) const {
  const Graph& graph = program_.functions[f];
  const FunctionOnStage& function = stages_[stage].functions[f];
  const auto own = static_cast<int32_t>(stage);
  std::vector<std::pair<size_t, NodeId>> nodes;
  for (NodeId id : nodes_[stage][f]) {
    const Node& node = graph.node(id);
    const bool sends = is_sent(stage, node);
    if (routes_.is_transfer(node) && !sends) continue;  // comes with its reader
    const size_t action = f == 0 ? action_at_[stage][index_of(id)] : 0;
    const bool waits_for_reader = f == 0 && action == 0 && !sends;
    if (!waits_for_reader) nodes.push_back({action, id});
  }
  llvm::stable_sort(nodes, [](const auto& a, const auto& b) { return a.first < b.first; });
  StageOrder order(graph, function, routes_, own,
                   f == 0 ? llvm::ArrayRef<NodeId>(transfers_) : llvm::ArrayRef<NodeId>());
  for (const auto& [action, id] : nodes) order.emit(id);
  for (NodeId id : nodes_[stage][f])
    if (function.is_needed(id)) order.emit(id);
  return order.take();
}

}  // namespace

Result<std::vector<Program>> project_stages(const Program& program, const PipelineSplit& split,
                                            llvm::function_ref<double(const Graph&, const Node&, size_t stage)> us) {
  return Projector(program, split, us).run();
}

}  // namespace plimsoll
