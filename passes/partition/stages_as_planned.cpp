#include "passes/partition/stages_as_planned.h"

#include "ir/builder.h"
#include "passes/analysis/dependence.h"
#include "passes/partition/function_on_stage.h"

#include <limits>
#include <map>
#include <set>

namespace plimsoll {
namespace {

class StagePlacer {
 public:
  StagePlacer(Graph& graph, const StagesOfStates& owners, int64_t stages)
      : graph_(graph), stages_(stages), stage_of_(graph.value_count(), nowhere), made_at_(graph.value_count(), -1) {
    for (const State& state : graph.states)
      if (const auto owner = owners.find(graph.value(state.value).name); owner != owners.end())
        stage_of_[index_of(state.value)] = owner->second;
  }

  void run() {
    const std::vector<NodeId> order = graph_.order();
    std::vector<bool> of_states(graph_.value_count(), false);  // made of states alone
    for (const State& state : graph_.states) of_states[index_of(state.value)] = true;
    for (size_t at = 0; at < order.size(); ++at) {
      const int32_t stage = stage_for(order[at], of_states);
      const Node& node = graph_.node(order[at]);
      const bool alone = !node.operands.empty() && llvm::all_of(node.operands, [&](ValueId operand) {
        return operand == ValueId::None || of_states[index_of(operand)];
      });
      for (ValueId result : node.results) {
        stage_of_[index_of(result)] = stage, made_at_[index_of(result)] = static_cast<int64_t>(at);
        of_states[index_of(result)] = alone;
      }
    }
    for (NodeId id : order) localise(id);
  }

 private:
  static constexpr int32_t nowhere = -1;

  int32_t stage_for(NodeId id, const std::vector<bool>& of_states) const {
    int32_t by_state = nowhere, by_latest = nowhere;
    int64_t latest = -1;
    for (ValueId operand : graph_.node(id).operands) {
      if (operand == ValueId::None || stage_of_[index_of(operand)] == nowhere) continue;
      const int32_t stage = stage_of_[index_of(operand)];
      if (of_states[index_of(operand)]) by_state = std::max(by_state, stage);
      if (made_at_[index_of(operand)] >= latest) latest = made_at_[index_of(operand)], by_latest = stage;
    }
    return by_state != nowhere ? by_state : by_latest;
  }

  void localise(NodeId id) {
    const int32_t stage = stage_of_[index_of(graph_.node(id).results.front())];
    for (size_t i = 0; i < graph_.node(id).operands.size(); ++i) {
      const ValueId operand = graph_.node(id).operands[i];
      if (operand == ValueId::None || stage_of_[index_of(operand)] == nowhere || stage_of_[index_of(operand)] == stage)
        continue;
      graph_.set_operand(id, i, moved(operand, stage));
    }
  }

  ValueId moved(ValueId value, int32_t stage) {
    const auto [at, fresh] = moved_.try_emplace({value, stage}, ValueId::None);
    if (!fresh) return at->second;
    const NodeId producer = graph_.value(value).producer;
    Builder b(graph_, producer == NodeId::None ? graph_.first_node() : graph_.next_node(producer));
    return at->second = b.emit("transfer", {value},
                               {{"axis", std::string("stage")},
                                {"ranks", stages_},
                                {"from", int64_t{stage_of_[index_of(value)]}},
                                {"to", int64_t{stage}}},
                               graph_.value(value).name + ".stage" + std::to_string(stage));
  }

  Graph& graph_;
  int64_t stages_;
  std::vector<int32_t> stage_of_;  // by value; nowhere: each stage that reads it computes it
  std::vector<int64_t> made_at_;   // by value: its node's place in the order; -1: no node makes it
  std::map<std::pair<ValueId, int32_t>, ValueId> moved_;
};

}  // namespace

void place_on_stages(Graph& graph, const StagesOfStates& owners, int64_t stages) {
  StagePlacer(graph, owners, stages).run();
}

Result<std::vector<Graph>> graphs_of_stages(const Graph& graph, const StagesOfStates& owners, int64_t stages) {
  const StageRuns runs{PipelineSchedule::OneForwardOneBackward, stages};  // one run of layers for each stage
  const Routes routes(runs);
  Owners runs_of_states;
  for (const auto& owner : owners) runs_of_states[owner.first()] = owner.second;
  Places places(graph, routes, runs_of_states);
  if (Status s = places.find(runs_of_states)) return s;
  std::vector<Graph> made;
  for (int32_t stage = 0; stage < stages; ++stage) {
    FunctionOnStage function(graph, places, routes, stage);
    llvm::StringSet<> own;
    for (const auto& owner : owners)
      if (owner.second == stage) own.insert(owner.first());
    function.need_sinks(own);
    for (const auto& state : function.states()) own.insert(state.first());
    std::vector<NodeId> order;
    for (NodeId id = graph.first_node(); id != NodeId::None; id = graph.next_node(id)) {
      const Node& node = graph.node(id);
      const bool sends = routes.is_transfer(node) && routes.sender_of(node) == stage;
      if (function.is_needed(id) || sends) order.push_back(id);
    }
    made.push_back(function.make(own, order));
  }
  return made;
}

namespace {

// Where the states that a stage has are first read: by a node that batches decide, perhaps behind casts of them.
class FirstReaders {
 public:
  FirstReaders(const Graph& graph, const StagesOfStates& owners) : graph_(graph), owners_(owners), parameters_(graph) {}

  // The stages of the trained states that this node is the first to read.
  std::vector<int32_t> stages_of(NodeId id) {
    std::vector<int32_t> stages;
    const Node& node = graph_.node(id);
    if (parameters_.alone[index_of(node.results.front())]) return stages;
    for (ValueId operand : node.operands)
      if (operand != ValueId::None && parameters_.alone[index_of(operand)]) add(operand, stages);
    return stages;
  }

 private:
  void add(ValueId value, std::vector<int32_t>& stages) {
    if (!seen_.insert(value).second) return;
    const NodeId producer = graph_.value(value).producer;
    if (producer != NodeId::None) {
      for (ValueId operand : graph_.node(producer).operands)
        if (operand != ValueId::None) add(operand, stages);
      return;
    }
    const State* state = graph_.find_state(value);
    const auto owner = state && state->trained ? owners_.find(graph_.value(value).name) : owners_.end();
    if (owner != owners_.end()) stages.push_back(owner->second);
  }

  const Graph& graph_;
  const StagesOfStates& owners_;
  ParameterValues parameters_;
  std::set<ValueId> seen_;
};

// What stands between two places where the model may be cut, or behind the last one.
struct Section {
  NodeId end = NodeId::None;  // its place; none of the last section
  int64_t nodes = 0;
  llvm::SmallVector<int32_t, 1> stages;  // whose states it is the first to read

  bool may_be_on(int64_t stage) const {
    return llvm::all_of(stages, [&](int32_t each) { return each == stage; });
  }
};

std::vector<Section> sections_between(const Graph& graph, llvm::ArrayRef<NodeId> places, const StagesOfStates& owners) {
  FirstReaders readers(graph, owners);
  std::vector<Section> sections(1);
  for (NodeId id : graph.order()) {
    ++sections.back().nodes;
    llvm::append_range(sections.back().stages, readers.stages_of(id));
    if (sections.size() > places.size() || places[sections.size() - 1] != id) continue;
    sections.back().end = id;
    sections.emplace_back();
  }
  return sections;
}

}  // namespace

// A run takes one section or several. Of all ways to take them in which each run is on the stage of the states that it
// reads, the one whose runs have most nearly as many nodes: least squares, found by the number of runs and the section
// in which they end.
Result<std::vector<NodeId>> ends_as_planned(const Graph& graph, llvm::ArrayRef<NodeId> places,
                                            const StagesOfStates& owners, const StageRuns& runs) {
  constexpr double never = std::numeric_limits<double>::infinity();
  const std::vector<Section> sections = sections_between(graph, places, owners);
  const size_t count = static_cast<size_t>(runs.count()), all = sections.size();
  std::vector<std::vector<double>> cost(count + 1, std::vector<double>(all + 1, never));
  std::vector<std::vector<size_t>> first(count + 1, std::vector<size_t>(all + 1, 0));  // section of the last run
  cost[0][0] = 0;
  for (size_t run = 0; run < count; ++run)
    for (size_t begin = 0; begin < all; ++begin) {
      if (cost[run][begin] == never) continue;
      double nodes = 0;
      for (size_t i = begin; i < all && sections[i].may_be_on(runs.stage_of(static_cast<int64_t>(run))); ++i) {
        nodes += static_cast<double>(sections[i].nodes);
        const double total = cost[run][begin] + nodes * nodes;
        if (total < cost[run + 1][i + 1]) cost[run + 1][i + 1] = total, first[run + 1][i + 1] = begin;
      }
    }
  if (cost[count][all] == never)
    return model_error("the model cannot be cut into the stages of the plan: at this length the states of " +
                       llvm::Twine(runs.stages) +
                       " stages are read in another order; give one length, fewer stages or --schedule 1f1b");
  std::vector<NodeId> ends(count - 1);
  for (size_t run = count, end = all; run > 1; --run) {
    end = first[run][end];
    ends[run - 2] = sections[end - 1].end;
  }
  return ends;
}

}  // namespace plimsoll
