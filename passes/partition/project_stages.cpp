#include "passes/partition/project_stages.h"

// Every value has a place: one run of layers, or any, where each stage that reads it can compute it. A transfer moves a
// value to another run; what runs of several stages add up is then on all of them. Each stage's graph is what its sinks
// need.
//
// Why no stage waits for ever: sends stand behind what makes them and receives before what reads them, and both in one
// order of all transfers, which a simulation of the schedule made (pipeline_schedule.h).

#include "ir/builder.h"
#include "ir/op_def.h"

#include "llvm/ADT/StringSet.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace plimsoll {
namespace {

constexpr int32_t any_run = -1;

bool moves_between_runs(const Node& node) { return node.op->name == "transfer"; }
int32_t sending_run(const Node& transfer) { return static_cast<int32_t>(transfer.attrs.get_int("from")); }
int32_t receiving_run(const Node& transfer) { return static_cast<int32_t>(transfer.attrs.get_int("to")); }

// Transfers, and which stages they are between.
class Routes {
 public:
  explicit Routes(const StageRuns& runs) : runs_(runs) {}

  int32_t stage_of(int32_t run) const { return static_cast<int32_t>(runs_.stage_of(run)); }
  int32_t sender_of(const Node& transfer) const { return stage_of(sending_run(transfer)); }
  int32_t receiver_of(const Node& transfer) const { return stage_of(receiving_run(transfer)); }
  // From stage to stage. What goes from run to run of one stage stays where it is.
  bool is_transfer(const Node& node) const { return moves_between_runs(node) && sender_of(node) != receiver_of(node); }
  const StageRuns& runs() const { return runs_; }

 private:
  const StageRuns& runs_;
};

// Adds up what its operands hold, so that parts of the sum may be made on several stages.
bool is_sum_of_operands(const Node& node) { return node.op->name == "sum_squares" || node.op->name == "add_n"; }

// The norm of the gradients, by which each stage scales its own. It is made of several sums, each of them of all stages
// even where one alone has such gradients.
bool is_sum_for_all_stages(const Node& node) { return node.op->name == "sum_squares" && node.phase == Phase::Update; }

// By name of a state that one stage alone updates: the run that makes its next value.
using Owners = llvm::StringMap<int32_t>;

// Where the values of one function of the program are.
class Places {
 public:
  Places(const Graph& graph, const Routes& routes, const Owners& owners)
      : graph_(graph), routes_(routes), place_(graph.value_count(), any_run) {
    for (const State& state : graph.states) place_[index_of(state.value)] = owner_in(owners, state.value);
  }

  Status find(Owners& owners) {
    for (NodeId id = graph_.first_node(); id != NodeId::None; id = graph_.next_node(id))
      if (Status s = visit(id)) return s;
    for (const Update& update : graph_.updates) {
      const int32_t made = of(update.value), owner = owner_in(owners, update.state);
      const std::string& name = graph_.value(update.state).name;
      if (made != any_run && owner != any_run && !same_stage(made, owner))
        return model_error("stages: the next value of " + name + " is made on stage " +
                           llvm::Twine(routes_.stage_of(made)) + ", and it belongs to stage " +
                           llvm::Twine(routes_.stage_of(owner)));
      if (made != any_run) owners[name] = made;
    }
    return Status::success();
  }

  // A run, or any.
  int32_t of(ValueId value) const { return place_[index_of(value)]; }
  bool is_on(ValueId value, int32_t stage) const {
    return of(value) != any_run && routes_.stage_of(of(value)) == stage;
  }
  // Sums over stages, in order.
  llvm::ArrayRef<NodeId> joint_sums() const { return joint_sums_; }
  bool is_joint_sum(NodeId id) const { return llvm::is_contained(joint_sums_, id); }
  // Of a transfer: how many go from the same stage to the same one before it.
  int64_t number_of(NodeId transfer) const { return numbers_.at(transfer); }

 private:
  int32_t owner_in(const Owners& owners, ValueId state) const {
    auto found = owners.find(graph_.value(state).name);
    return found == owners.end() ? any_run : found->second;
  }

  bool same_stage(int32_t a, int32_t b) const { return routes_.stage_of(a) == routes_.stage_of(b); }

  // What reads values of several runs of one stage belongs to the last of these that a micro-batch comes to.
  static int32_t later_run(Phase phase, int32_t a, int32_t b) {
    return phase == Phase::Forward ? std::max(a, b) : std::min(a, b);
  }

  Status visit(NodeId id) {
    const Node& node = graph_.node(id);
    int32_t place = any_run;
    bool several = false;
    for (ValueId operand : node.operands) {
      if (operand == ValueId::None || of(operand) == any_run) continue;
      several |= place != any_run && !same_stage(place, of(operand));
      place = place == any_run ? of(operand) : later_run(node.phase, place, of(operand));
    }
    if (moves_between_runs(node)) {
      if (place != any_run && !same_stage(place, sending_run(node)))
        return wrong(node, "is not on the stage that sends it");
      place = receiving_run(node);
      if (routes_.is_transfer(node)) numbers_[id] = transfers_[{routes_.sender_of(node), routes_.receiver_of(node)}]++;
    } else if (several || (place != any_run && is_sum_for_all_stages(node))) {
      if (!is_sum_of_operands(node)) return wrong(node, "reads values of several stages");
      joint_sums_.push_back(id);
      place = any_run;
    }
    for (ValueId result : node.results) place_[index_of(result)] = place;
    return Status::success();
  }

  Status wrong(const Node& node, const llvm::Twine& what) const {
    return model_error("stages: " + graph_.value(node.results.front()).name + " (" + node.op->name + ") " + what);
  }

  const Graph& graph_;
  const Routes& routes_;
  std::vector<int32_t> place_;  // by value
  std::vector<NodeId> joint_sums_;
  std::map<NodeId, int64_t> numbers_;                         // by transfer
  std::map<std::pair<int32_t, int32_t>, int64_t> transfers_;  // from one stage to another, so far
};

// One function on one stage: the nodes that it needs, and then its graph.
class StageFunction {
 public:
  StageFunction(const Graph& graph, const Places& places, const Routes& routes, int32_t stage)
      : graph_(graph),
        places_(places),
        routes_(routes),
        stage_(stage),
        needed_(graph.node_slots(), false),
        value_(graph.value_count(), ValueId::None) {}

  // All that the stage gives to others, and the next values of the states in `own`.
  void need_sinks(const llvm::StringSet<>& own) {
    for (NodeId id = graph_.first_node(); id != NodeId::None; id = graph_.next_node(id)) {
      const Node& node = graph_.node(id);
      if (routes_.is_transfer(node) && routes_.sender_of(node) == stage_) need(node.operands.front());
      if (places_.is_joint_sum(id)) need_node(id);
    }
    for (const Output& output : graph_.outputs)
      if (is_here(output.value)) need(output.value);
    for (const Update& update : graph_.updates)
      if (own.contains(graph_.value(update.state).name)) need(update.value);
  }

  bool is_here(ValueId value) const { return places_.of(value) == any_run || places_.is_on(value, stage_); }
  const llvm::StringSet<>& states() const { return states_; }
  bool is_needed(NodeId id) const { return needed_[index_of(id)]; }

  Graph make(const llvm::StringSet<>& own, llvm::ArrayRef<NodeId> order);

 private:
  void need(ValueId value) {
    const NodeId producer = graph_.value(value).producer;
    if (producer != NodeId::None) return need_node(producer);
    if (graph_.find_state(value)) states_.insert(graph_.value(value).name);
    inputs_.insert(value);
  }

  void need_node(NodeId id) {
    if (needed_[index_of(id)]) return;
    needed_[index_of(id)] = true;
    const Node& node = graph_.node(id);
    if (routes_.is_transfer(node)) return;  // received
    for (ValueId operand : node.operands)
      if (operand != ValueId::None && is_here(operand)) need(operand);
  }

  Attrs group() const { return {{"axis", std::string("stage")}, {"ranks", routes_.runs().stages}}; }
  Attrs end_attrs(NodeId id, int32_t peer) const {
    Attrs attrs = group();
    attrs.set("peer", int64_t{peer});
    attrs.set("number", places_.number_of(id));
    return attrs;
  }

  void copy_node(Graph& to, Builder& b, NodeId id);
  void copy_transfer(Builder& b, NodeId id);
  void copy_joint_sum(Builder& b, NodeId id);
  ValueId summed_over_stages(Builder& b, ValueId own, const Type& type, llvm::StringRef name) const {
    if (own == ValueId::None) own = b.emit("expand", {b.scalar(0, type.dtype)}, {{"shape", Ints(type.shape)}});
    return b.emit("reduce_all", {own}, group(), name);
  }

  const Graph& graph_;
  const Places& places_;
  const Routes& routes_;
  int32_t stage_;
  std::vector<bool> needed_;  // by node
  llvm::StringSet<> states_;
  std::set<ValueId> inputs_;    // and states
  std::vector<ValueId> value_;  // by value of the whole graph: the stage's
};

void StageFunction::copy_transfer(Builder& b, NodeId id) {
  const Node& node = graph_.node(id);
  if (routes_.sender_of(node) == stage_) {
    b.emit("send", {value_[index_of(node.operands.front())]}, end_attrs(id, routes_.receiver_of(node)),
           graph_.value(node.results.front()).name + ".sent");
    return;
  }
  const Type& type = graph_.type(node.results.front());
  Attrs attrs = end_attrs(id, routes_.sender_of(node));
  attrs.set("dtype", type.dtype);
  attrs.set("shape", Ints(type.shape));
  value_[index_of(node.results.front())] =
      b.emit("receive", {}, std::move(attrs), graph_.value(node.results.front()).name);
}

void StageFunction::copy_joint_sum(Builder& b, NodeId id) {
  const Node& node = graph_.node(id);
  llvm::SmallVector<ValueId, 16> own;
  for (ValueId operand : node.operands)
    if (places_.is_on(operand, stage_) || (stage_ == 0 && places_.of(operand) == any_run))
      own.push_back(value_[index_of(operand)]);
  const ValueId result = node.results.front(),
                sum = own.empty() ? ValueId::None : b.emit(node.op->name, own, node.attrs);
  value_[index_of(result)] = summed_over_stages(b, sum, graph_.type(result), graph_.value(result).name);
}

void StageFunction::copy_node(Graph& to, Builder& b, NodeId id) {
  const Node& node = graph_.node(id);
  b.origin = node.origin;
  b.phase = node.phase;
  if (routes_.is_transfer(node)) return copy_transfer(b, id);
  if (moves_between_runs(node))
    return void(value_[index_of(node.results.front())] = value_[index_of(node.operands.front())]);
  if (places_.is_joint_sum(id)) return copy_joint_sum(b, id);
  llvm::SmallVector<ValueId, 6> operands;
  for (ValueId operand : node.operands)
    operands.push_back(operand == ValueId::None ? operand : value_[index_of(operand)]);
  llvm::SmallVector<Type, 2> types;
  llvm::SmallVector<std::string, 2> names;
  for (ValueId result : node.results) {
    types.push_back(graph_.type(result));
    names.push_back(graph_.value(result).name);
  }
  const NodeId made = to.add_node(*node.op, operands, node.attrs, types, names);
  to.node(made).origin = node.origin;
  to.node(made).phase = node.phase;
  to.node(made).reason = node.reason;
  for (size_t i = 0; i < node.results.size(); ++i) value_[index_of(node.results[i])] = to.node(made).results[i];
}

Graph StageFunction::make(const llvm::StringSet<>& own, llvm::ArrayRef<NodeId> order) {
  Graph stage;
  stage.name = graph_.name;
  stage.origins = graph_.origins;
  for (ValueId input : graph_.inputs) {
    if (!inputs_.count(input)) continue;
    const ValueId made = value_[index_of(input)] = stage.add_input(graph_.value(input).name, graph_.type(input));
    if (llvm::is_contained(graph_.whole_inputs, input)) stage.whole_inputs.push_back(made);
  }
  for (const State& state : graph_.states) {
    const std::string& name = graph_.value(state.value).name;
    if (!own.contains(name)) continue;
    const ValueId made = stage.add_state(name, graph_.type(state.value), state.role, state.init, state.trained);
    State copy = state;
    copy.value = made;
    stage.states.back() = std::move(copy);
    value_[index_of(state.value)] = made;
  }
  Builder b(stage);
  for (NodeId id : order) copy_node(stage, b, id);
  b.origin = OriginId::None;
  b.phase = Phase::Update;
  for (const Output& output : graph_.outputs) {
    const ValueId here = value_[index_of(output.value)];
    const bool everywhere = places_.of(output.value) == any_run;
    stage.outputs.push_back({output.name, everywhere
                                              ? here
                                              : summed_over_stages(b, is_here(output.value) ? here : ValueId::None,
                                                                   graph_.type(output.value), output.name)});
  }
  for (const Update& update : graph_.updates)
    if (own.contains(graph_.value(update.state).name))
      stage.updates.push_back({value_[index_of(update.state)], value_[index_of(update.value)]});
  for (const StateGradient& gradient : graph_.gradients)
    if (own.contains(graph_.value(gradient.state).name))
      stage.gradients.push_back({value_[index_of(gradient.state)], value_[index_of(gradient.value)]});
  return stage;
}

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
    std::vector<StageFunction> functions;
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
        StageFunction& function = result.functions.emplace_back(program_.functions[f], places_[f], routes_, stage);
        function.need_sinks(result.states);
      }
      for (const StageFunction& function : result.functions)
        for (const auto& state : function.states()) result.states.insert(state.first());
    }
    return result;
  }

  // The first stage keeps what nobody reads, so that the stages together have all states of the model.
  void give_unread_states() {
    for (const Graph& graph : program_.functions)
      for (const State& state : graph.states) {
        const std::string& name = graph.value(state.value).name;
        if (llvm::none_of(stages_, [&](const Stage& stage) { return stage.states.contains(name); }))
          stages_.front().states.insert(name);
      }
    std::vector<StageFunction>& functions = stages_.front().functions;
    for (StageFunction& function : functions) {
      function.need_sinks(stages_.front().states);
      for (const auto& state : function.states()) stages_.front().states.insert(state.first());
    }
  }

  Status check_owners() const {
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
    for (NodeId id = step().first_node(); id != NodeId::None; id = step().next_node(id)) {
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
    for (NodeId id = step().first_node(); id != NodeId::None; id = step().next_node(id)) {
      const Node& node = step().node(id);
      if (!takes_part(stage, id)) continue;
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
    for (NodeId id = step().first_node(); id != NodeId::None; id = step().next_node(id)) {
      const Node& node = step().node(id);
      if (routes_.is_transfer(node)) {
        const auto from = static_cast<size_t>(routes_.sender_of(node)),
                   to = static_cast<size_t>(routes_.receiver_of(node));
        ids.push_back(id);
        transfers.push_back(
            {from, action_at_[from][index_of(id)], to, std::max<size_t>(first_reading_action(to, id), 1)});
        continue;
      }
      for (size_t stage = 0; stage < stages_.size(); ++stage)
        if (stages_[stage].functions.front().is_needed(id))
          us[stage][action_at_[stage][index_of(id)]] += us_(step(), node, stage);
    }
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
  std::vector<std::vector<bool>> sends_on_;        // by stage, by node of backward
  std::vector<std::vector<int32_t>> run_of_;       // by stage, by node: which of the stage's runs
  std::vector<std::vector<StageAction>> actions_;  // by stage
  std::vector<std::vector<size_t>> action_at_;     // by stage, by node: its action
  std::vector<NodeId> transfers_;                  // of the step, in the order in which all stages make them
};

// The nodes of one stage's function in the order of its actions. What belongs to no micro-batch comes before its first
// reader, a receive before its first reader and before later sends.
class StageOrder {
 public:
  StageOrder(const Graph& graph, const StageFunction& function, const Routes& routes, int32_t stage,
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
  const StageFunction& function_;
  const Routes& routes_;
  int32_t stage_;
  std::vector<bool> done_;         // by node
  std::vector<NodeId> transfers_;  // the stage's, in order
  size_t next_ = 0;                // of transfers_: those before are in the order
  std::vector<NodeId> order_;
};

std::vector<NodeId> Projector::order_of(size_t stage, size_t f) const {
  const Graph& graph = program_.functions[f];
  const StageFunction& function = stages_[stage].functions[f];
  const auto own = static_cast<int32_t>(stage);
  std::vector<std::pair<size_t, NodeId>> nodes;
  for (NodeId id = graph.first_node(); id != NodeId::None; id = graph.next_node(id)) {
    const Node& node = graph.node(id);
    const bool sends = is_sent(stage, node);
    if (!function.is_needed(id) && !sends) continue;
    if (routes_.is_transfer(node) && !sends) continue;  // comes with its reader
    const size_t action = f == 0 ? action_at_[stage][index_of(id)] : 0;
    const bool waits_for_reader = f == 0 && action == 0 && !sends;
    if (!waits_for_reader) nodes.push_back({action, id});
  }
  llvm::stable_sort(nodes, [](const auto& a, const auto& b) { return a.first < b.first; });
  StageOrder order(graph, function, routes_, own,
                   f == 0 ? llvm::ArrayRef<NodeId>(transfers_) : llvm::ArrayRef<NodeId>());
  for (const auto& [action, id] : nodes) order.emit(id);
  for (NodeId id = graph.first_node(); id != NodeId::None; id = graph.next_node(id))
    if (function.is_needed(id)) order.emit(id);
  return order.take();
}

}  // namespace

Result<std::vector<Program>> project_stages(const Program& program, const PipelineSplit& split,
                                            llvm::function_ref<double(const Graph&, const Node&, size_t stage)> us) {
  return Projector(program, split, us).run();
}

}  // namespace plimsoll
