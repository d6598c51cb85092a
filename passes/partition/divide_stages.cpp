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
  StageDivider(Graph& graph, llvm::ArrayRef<NodeId> ends)
      : graph_(graph),
        ends_(ends),
        parameters_(graph),
        stage_of_(graph.node_slots(), 0),
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
  using OnStage = std::pair<ValueId, int32_t>;

  void find_homes(llvm::ArrayRef<NodeId> order) {
    std::vector<bool> reads_trained(graph_.value_count(), false), bound(graph_.value_count(), false);
    for (const State& state : graph_.states) reads_trained[index_of(state.value)] = state.trained;
    int32_t stage = 0;
    for (NodeId id : order) {
      const Node& node = graph_.node(id);
      const bool trained = any_in(node.operands, reads_trained), multiplies = node.op->precision == Precision::Low;
      const bool alone = parameters_.alone[index_of(node.results.front())];
      stage_of_[index_of(id)] = stage;
      for (ValueId result : node.results) {
        reads_trained[index_of(result)] = trained;
        bound[index_of(result)] = !alone && (trained || multiplies || any_in(node.operands, bound));
        if (bound[index_of(result)]) home_[index_of(result)] = stage;
      }
      if (static_cast<size_t>(stage) < ends_.size() && ends_[static_cast<size_t>(stage)] == id) ++stage;
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
      if (is_parameter(operand)) own(operand, stage_of_[index_of(id)]);
  }

  // Nodes come in the order of the stages, so the first stage to ask for a state owns it. What is made of states has
  // the owner of all of them; nowhere if they have several.
  void own(ValueId value, int32_t stage) {
    int32_t& owner = owner_[index_of(value)];
    if (owner != nowhere) return;
    const NodeId producer = graph_.value(value).producer;
    if (producer == NodeId::None) return void(owner = stage);
    std::set<int32_t> owners;
    for (ValueId operand : graph_.node(producer).operands)
      if (is_parameter(operand)) own(operand, stage), owners.insert(owner_[index_of(operand)]);
    owner = owners.size() == 1 ? *owners.begin() : nowhere;
  }

  void localise(NodeId id) {
    if (!is_bound(id)) return;
    const int32_t stage = stage_of_[index_of(id)];
    for (size_t i = 0; i < graph_.node(id).operands.size(); ++i) {
      const ValueId operand = graph_.node(id).operands[i];
      if (operand == ValueId::None) continue;
      const int32_t from = home(operand);
      if (from != nowhere && from != stage)
        graph_.set_operand(id, i, transferred(operand, from, stage, behind(operand)));
      else if (is_parameter(operand))
        graph_.set_operand(id, i, parameter_on(operand, stage));
    }
  }

  NodeId behind(ValueId value) const {
    const NodeId producer = graph_.value(value).producer;
    return producer == NodeId::None ? graph_.first_node() : graph_.next_node(producer);
  }

  ValueId transferred(ValueId value, int32_t from, int32_t to, NodeId before) {
    auto [at, fresh] = moved_.try_emplace({value, to}, ValueId::None);
    if (!fresh) return at->second;
    Builder b(graph_, before);
    ++transfers_;
    return at->second = b.emit("transfer", {value},
                               {{"axis", std::string("stage")},
                                {"ranks", static_cast<int64_t>(ends_.size() + 1)},
                                {"from", int64_t{from}},
                                {"to", int64_t{to}}},
                               graph_.value(value).name + ".stage" + std::to_string(to));
  }

  // States are transferred; what is made of them is made again there.
  ValueId parameter_on(ValueId value, int32_t stage) {
    if (!is_parameter(value) || owner_[index_of(value)] == stage) return value;
    const NodeId producer = graph_.value(value).producer;
    if (producer == NodeId::None) return transferred(value, owner_[index_of(value)], stage, graph_.first_node());
    if (auto done = moved_.find({value, stage}); done != moved_.end()) return done->second;
    const Node node = graph_.node(producer);  // a copy: making nodes moves nodes
    llvm::SmallVector<ValueId, 4> operands;
    for (ValueId operand : node.operands) operands.push_back(parameter_on(operand, stage));
    Builder b(graph_, graph_.next_node(producer));
    b.origin = node.origin;
    const llvm::SmallVector<ValueId, 4> results = b.emit_all(node.op->name, operands, node.attrs);
    graph_.node(graph_.value(results.front()).producer).reason = node.reason;
    for (size_t i = 0; i < results.size(); ++i) moved_[{node.results[i], stage}] = results[i];
    return moved_[{value, stage}];
  }

  Graph& graph_;
  llvm::ArrayRef<NodeId> ends_;
  ParameterValues parameters_;
  std::vector<int32_t> stage_of_;     // by node: in whose run it stands
  std::vector<int32_t> home_;         // by value: the stage that computes it; nowhere: each stage that reads it
  std::vector<int32_t> owner_;        // by value that trained states decide
  std::map<OnStage, ValueId> moved_;  // the value on another stage
  int64_t transfers_ = 0;
};

Result<bool> run(Graph& graph, PassContext& context) {
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
  context.count("stages", static_cast<int64_t>(ends.size() + 1));
  const int64_t transfers = divide_stages(graph, ends);
  context.count("transfers", transfers);
  return transfers > 0;
}

constexpr PassOption pass_options[] = {
    {"behind", "", "the last values of all stages but the last, with spaces between"}};

}  // namespace

int64_t divide_stages(Graph& graph, llvm::ArrayRef<NodeId> ends) { return StageDivider(graph, ends).run(); }

constinit const PassInfo pass_divide_stages{
    .name = "divide-stages",
    .summary = "values go from stage to stage of a pipeline by transfers",
    .stage = Stage::Forward,
    .options = pass_options,
    .run = run,
};

}  // namespace plimsoll
