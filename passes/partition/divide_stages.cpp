#include "passes/partition/divide_stages.h"

#include "ir/builder.h"
#include "passes/analysis/dependence.h"
#include "passes/pass/pass.h"

#include <map>
#include <set>

namespace plimsoll {
namespace {

class StageDivider {
 public:
  StageDivider(Graph& graph, llvm::ArrayRef<NodeId> ends, const StageRuns& runs)
      : graph_(graph),
        ends_(ends),
        runs_(runs),
        parameters_(graph),
        run_of_(graph.node_slots(), 0),
        home_(graph.value_count(), nowhere),
        owner_(graph.value_count(), nowhere) {}

  int64_t run() {
    const std::vector<NodeId> order = graph_.order();
    find_homes(order);
    for (NodeId id : order) find_owners(id);
    for (NodeId id : order) localise(id);
    return transfers_;
  }

 private:
  static constexpr int32_t nowhere = -1;
  using InRun = std::pair<ValueId, int32_t>;

  int32_t stage_of(int32_t run) const { return static_cast<int32_t>(runs_.stage_of(run)); }

  void find_homes(llvm::ArrayRef<NodeId> order) {
    std::vector<bool> reads_trained(graph_.value_count(), false), bound(graph_.value_count(), false);
    for (const State& state : graph_.states) reads_trained[index_of(state.value)] = state.trained;
    int32_t run = 0;
    for (NodeId id : order) {
      const Node& node = graph_.node(id);
      const bool trained = any_in(node.operands, reads_trained), multiplies = node.op->precision == Precision::Low;
      const bool alone = parameters_.alone[index_of(node.results.front())];
      run_of_[index_of(id)] = run;
      for (ValueId result : node.results) {
        reads_trained[index_of(result)] = trained;
        bound[index_of(result)] = !alone && (trained || multiplies || any_in(node.operands, bound));
        if (bound[index_of(result)]) home_[index_of(result)] = run;
      }
      if (static_cast<size_t>(run) < ends_.size() && ends_[static_cast<size_t>(run)] == id) ++run;
    }
  }

  int32_t home(ValueId value) const { return index_of(value) < home_.size() ? home_[index_of(value)] : nowhere; }
  bool is_bound(NodeId id) const { return home(graph_.node(id).results.front()) != nowhere; }
  // Decided by trained states alone: a gradient passes it, and no batch.
  bool is_parameter(ValueId value) const {
    return value != ValueId::None && index_of(value) < home_.size() && parameters_.alone[index_of(value)] &&
           parameters_.trained[index_of(value)];
  }

  void find_owners(NodeId id) {
    if (!is_bound(id)) return;
    for (ValueId operand : graph_.node(id).operands)
      if (is_parameter(operand)) own(operand, run_of_[index_of(id)]);
  }

  // Nodes come in the order of the runs, so the first run to ask for a state owns it. What is made of states has the
  // owner of all of them; nowhere if they are of several stages.
  void own(ValueId value, int32_t run) {
    int32_t& owner = owner_[index_of(value)];
    if (owner != nowhere) return;
    const NodeId producer = graph_.value(value).producer;
    if (producer == NodeId::None) return void(owner = run);
    std::set<int32_t> owners, stages;
    for (ValueId operand : graph_.node(producer).operands)
      if (is_parameter(operand)) {
        own(operand, run);
        owners.insert(owner_[index_of(operand)]);
        stages.insert(owner_[index_of(operand)] == nowhere ? nowhere : stage_of(owner_[index_of(operand)]));
      }
    owner = stages.size() == 1 ? *owners.begin() : nowhere;
  }

  void localise(NodeId id) {
    if (!is_bound(id)) return;
    const int32_t run = run_of_[index_of(id)];
    for (size_t i = 0; i < graph_.node(id).operands.size(); ++i) {
      const ValueId operand = graph_.node(id).operands[i];
      if (operand == ValueId::None) continue;
      const int32_t from = home(operand);
      if (from != nowhere && from != run)
        graph_.set_operand(id, i, in_run(operand, run));
      else if (is_parameter(operand))
        graph_.set_operand(id, i, parameter_in(operand, run));
    }
  }

  NodeId behind(ValueId value) const {
    const NodeId producer = graph_.value(value).producer;
    return producer == NodeId::None ? graph_.first_node() : graph_.next_node(producer);
  }

  // What another run computes: handed on by the last run of this stage that has it, or by the one that computes it.
  ValueId in_run(ValueId value, int32_t run) {
    if (const auto done = moved_.find({value, run}); done != moved_.end()) return done->second;
    int32_t from = home(value);
    ValueId held = value;
    for (int32_t earlier = from + 1; earlier < run; ++earlier)
      if (const auto done = moved_.find({value, earlier}); done != moved_.end() && stage_of(earlier) == stage_of(run))
        from = earlier, held = done->second;
    return moved_[{value, run}] = transferred(value, held, from, run, behind(held));
  }

  ValueId transferred(ValueId value, ValueId held, int32_t from, int32_t to, NodeId before) {
    Builder b(graph_, before);
    ++transfers_;
    return b.emit("transfer", {held},
                  {{"axis", std::string("stage")},
                   {"ranks", static_cast<int64_t>(ends_.size() + 1)},
                   {"from", int64_t{from}},
                   {"to", int64_t{to}}},
                  graph_.value(value).name + (runs_.per_stage > 1 ? ".run" : ".stage") + std::to_string(to));
  }

  // States are transferred to the first run of a stage that reads them; what is made of them is made again there.
  ValueId parameter_in(ValueId value, int32_t run) {
    const int32_t owner = is_parameter(value) ? owner_[index_of(value)] : nowhere;
    if (!is_parameter(value) || (owner != nowhere && stage_of(owner) == stage_of(run))) return value;
    const InRun key{value, stage_of(run)};
    if (auto done = parameters_moved_.find(key); done != parameters_moved_.end()) return done->second;
    const NodeId producer = graph_.value(value).producer;
    if (producer == NodeId::None)
      return parameters_moved_[key] = transferred(value, value, owner, run, graph_.first_node());
    const Node node = graph_.node(producer);  // a copy: making nodes moves nodes
    llvm::SmallVector<ValueId, 4> operands;
    for (ValueId operand : node.operands) operands.push_back(parameter_in(operand, run));
    Builder b(graph_, graph_.next_node(producer));
    b.origin = node.origin;
    const llvm::SmallVector<ValueId, 4> results = b.emit_all(node.op->name, operands, node.attrs);
    graph_.node(graph_.value(results.front()).producer).reason = node.reason;
    for (size_t i = 0; i < results.size(); ++i) parameters_moved_[{node.results[i], key.second}] = results[i];
    return parameters_moved_[key];
  }

  Graph& graph_;
  llvm::ArrayRef<NodeId> ends_;
  const StageRuns& runs_;
  ParameterValues parameters_;
  std::vector<int32_t> run_of_;                // by node: in which it stands
  std::vector<int32_t> home_;                  // by value: the run that computes it; nowhere: each stage that reads it
  std::vector<int32_t> owner_;                 // by value that trained states decide: a run
  std::map<InRun, ValueId> moved_;             // the value in another run
  std::map<InRun, ValueId> parameters_moved_;  // by value and stage
  int64_t transfers_ = 0;
};

// As many stages as take so many runs by the schedule of the options.
Result<StageRuns> runs_of(PassContext& context, int64_t count) {
  const std::string schedule = context.text("schedule");
  const auto* name = llvm::find(schedule_names, schedule);
  if (name == std::end(schedule_names)) return usage_error("there is no schedule '" + schedule + "'");
  StageRuns runs = runs_of_schedule(static_cast<PipelineSchedule>(name - std::begin(schedule_names)), 1,
                                    context.number("runs_per_stage"));
  if (count % runs.per_stage != 0)
    return usage_error(llvm::Twine(count) + " runs of layers do not make stages of " + llvm::Twine(runs.per_stage));
  runs.stages = count / runs.per_stage;
  return runs;
}

Result<bool> run_divide_stages(Graph& graph, PassContext& context) {
  const std::string behind = context.text("behind");
  llvm::SmallVector<llvm::StringRef, 4> names;
  llvm::StringRef(behind).split(names, ' ', -1, /*KeepEmpty=*/false);
  std::vector<NodeId> ends;
  for (llvm::StringRef name : names) {
    const ValueId value = graph.find_value(name);
    if (value == ValueId::None || graph.value(value).producer == NodeId::None)
      return usage_error("no node makes a value '" + name + "'");
    ends.push_back(graph.value(value).producer);
  }
  Result<StageRuns> runs = runs_of(context, static_cast<int64_t>(ends.size() + 1));
  if (!runs) return runs.takeError();
  context.count("stages", runs->stages);
  const int64_t transfers = divide_stages(graph, ends, *runs);
  context.count("transfers", transfers);
  return transfers > 0;
}

constexpr PassOption pass_options[] = {
    {"behind", "", "the last values of all runs of layers but the last, with spaces between"},
    {"schedule", "1f1b", "says which runs a stage has"},
    {"runs_per_stage", 0, "of `interleaved`; 0: two"}};

}  // namespace

int64_t divide_stages(Graph& graph, llvm::ArrayRef<NodeId> ends, const StageRuns& runs) {
  return StageDivider(graph, ends, runs).run();
}

int64_t divide_stages(Graph& graph, llvm::ArrayRef<NodeId> ends) {
  return divide_stages(graph, ends, {PipelineSchedule::OneForwardOneBackward, static_cast<int64_t>(ends.size() + 1)});
}

constinit const PassInfo pass_divide_stages{
    .name = "divide-stages",
    .summary = "values go from stage to stage of a pipeline by transfers",
    .stage = Stage::Forward,
    .options = pass_options,
    .run = run_divide_stages,
};

}  // namespace plimsoll
