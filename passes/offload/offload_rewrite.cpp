#include "passes/offload/offload_rewrite.h"

#include "ir/builder.h"
#include "ir/support/align.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace plimsoll {
namespace {

constexpr StateRole roles_for_host[] = {StateRole::Optimizer, StateRole::Gradient, StateRole::Parameter};

// Of a step's instructions: behind them, copies of optimizer state to the host are seldom hidden.
constexpr double share_before_last_copies = 0.9;

int64_t min_bytes(const DeviceDescription& device) {
  double us_per_byte = 1e-3 / std::max(std::min(device.to_host_gb_per_s, device.from_host_gb_per_s), 1e-9);
  return static_cast<int64_t>(device.min_copy_us() / us_per_byte) + 1;
}

class StateMover {
 public:
  StateMover(Graph& graph, std::vector<NodeId>& writers) : graph_(graph), writers_(writers) {
    int32_t position = 0;
    position_.assign(graph.node_slots(), 0);
    for (NodeId id = graph.first_node(); id != NodeId::None; id = graph.next_node(id))
      position_[index_of(id)] = position++;
  }

  void move(State& state) {
    state.space = MemorySpace::Host;
    reload(state);
    for (size_t i = 0; i < graph_.updates.size(); ++i)
      if (graph_.updates[i].state == state.value && graph_.space(graph_.updates[i].value) != MemorySpace::Host)
        write_back(state, i);
  }

 private:
  void reload(const State& state) {
    llvm::SmallVector<NodeId, 4> users(graph_.value(state.value).users.begin(), graph_.value(state.value).users.end());
    llvm::erase_if(users, [&](NodeId user) { return graph_.node(user).op->engine == Engine::ToDevice; });
    if (users.empty()) return;
    NodeId first = *std::min_element(users.begin(), users.end(), [&](NodeId a, NodeId b) {
      return position_[index_of(a)] < position_[index_of(b)];
    });
    NodeId copy = add_copy("to_device", state.value, ".reload", first);
    graph_.node(copy).phase = graph_.node(first).phase;
    graph_.node(copy).origin = state.origin;
    for (NodeId user : users)
      for (size_t i = 0; i < graph_.node(user).operands.size(); ++i)
        if (graph_.node(user).operands[i] == state.value) graph_.set_operand(user, i, graph_.node(copy).results[0]);
  }

  void write_back(const State& state, size_t update) {
    leave_out_copy(update);
    NodeId copy = add_copy("to_host", graph_.updates[update].value, ".host", graph_.next_node(writers_[update]));
    graph_.node(copy).phase = Phase::Update;
    graph_.node(copy).origin = state.origin;
    graph_.updates[update].value = graph_.node(copy).results[0];
    writers_[update] = copy;
  }

  // A value that several states become is copied for all but one of them, to be written into a state. Copies to the
  // host do that as well.
  void leave_out_copy(size_t update) {
    const ValueId value = graph_.updates[update].value;
    const NodeId copy = writers_[update];
    const ValueId source = graph_.node(copy).operands.empty() ? ValueId::None : graph_.node(copy).operands[0];
    if (graph_.node(copy).op->name != "copy" || graph_.type(source) != graph_.type(value)) return;
    const NodeId producer = graph_.value(root_of(graph_, source)).producer;
    const bool is_shown = llvm::any_of(graph_.outputs, [&](const Output& output) { return output.value == value; });
    if (producer == NodeId::None || !is_instruction(graph_.node(producer)) || is_shown) return;
    if (!graph_.value(value).users.empty()) return;
    graph_.updates[update].value = source;
    writers_[update] = graph_.node(copy).previous;
    graph_.erase_node(copy);
  }

  NodeId add_copy(llvm::StringRef op, ValueId value, const char* suffix, NodeId before) {
    std::string name = graph_.unique_name(graph_.value(value).name + suffix);
    return graph_.add_node(get_op(op), {value}, {}, {graph_.type(value)}, {name}, before);
  }

  Graph& graph_;
  std::vector<NodeId>& writers_;
  std::vector<int32_t> position_;  // by node, before any copy was added
};

void move_with_operands(Graph& graph, NodeId node, NodeId before, llvm::ArrayRef<NodeId> along) {
  graph.move_before(node, before);
  for (ValueId operand : graph.node(node).operands)
    if (operand != ValueId::None && llvm::is_contained(along, graph.value(operand).producer))
      move_with_operands(graph, graph.value(operand).producer, node, along);
}

// Moves an instruction to an earlier place, and with it the views and constants that it reads from behind that place.
void move_earlier(Graph& graph, NodeId node, NodeId before) {
  llvm::SmallVector<NodeId, 8> behind;
  for (NodeId id = before; id != node; id = graph.next_node(id))
    if (!is_instruction(graph.node(id))) behind.push_back(id);
  move_with_operands(graph, node, before, behind);
}

}  // namespace

std::vector<HostChoice> states_for_host(const PlanDraft& draft) {
  const int64_t min = min_bytes(draft.device);
  std::vector<std::pair<size_t, HostChoice>> choices;  // with the time of the update
  llvm::StringMap<size_t> updated;
  for (size_t f = 0; f < draft.functions.size(); ++f) {
    const Graph& graph = draft.program.functions[f];
    std::map<NodeId, size_t> position;
    for (NodeId id : graph.order()) position[id] = position.size();
    for (size_t i = 0; i < graph.updates.size(); ++i)
      updated[graph.value(graph.updates[i].state).name] =
          f * graph.node_slots() + position[draft.functions[f].writers[i]];
  }
  size_t latest = 0;
  for (const auto& each : updated) latest = std::max(latest, each.second);
  llvm::StringSet<> seen;
  for (const Graph& graph : draft.program.functions)
    for (const State& state : graph.states) {
      const Value& value = graph.value(state.value);
      if (!llvm::is_contained(roles_for_host, state.role) || value.type.bytes() < min ||
          !seen.insert(value.name).second)
        continue;
      auto at = updated.find(value.name);
      choices.push_back({at == updated.end() ? 0 : at->second,
                         {value.name, state.role, align_up(value.type.bytes(), draft.device.alignment_bytes)}});
    }
  // Updates in the last tenth leave their copies little compute to hide behind. Before that, the later the better: then
  // forward's values are gone, and there is room for copies that run ahead.
  const auto last = static_cast<double>(latest) * share_before_last_copies;
  auto rank = [&](const auto& choice) {
    const auto at = static_cast<double>(choice.first);
    const bool is_late_first = choice.second.role == StateRole::Optimizer && at <= last;
    return std::pair(llvm::find(roles_for_host, choice.second.role), is_late_first ? last - at : at);
  };
  std::stable_sort(choices.begin(), choices.end(), [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  std::vector<HostChoice> result;
  for (auto& choice : choices) result.push_back(std::move(choice.second));
  return result;
}

void move_states_to_host(Graph& graph, std::vector<NodeId>& writers, const llvm::StringSet<>& states) {
  StateMover mover(graph, writers);
  for (State& state : graph.states)
    if (states.contains(graph.value(state.value).name)) mover.move(state);
}

std::vector<CopyInFlight> issue_copies(Graph& graph, llvm::ArrayRef<CopyInterval> intervals) {
  struct Place {
    int32_t issue;  // it is issued ahead of the instruction that was here; where it was itself, it does not move
    bool computes;  // copies are issued ahead of the instruction that computes
    int32_t was;
    NodeId node;
    auto key() const { return std::tuple(issue, computes, was); }
  };
  std::vector<Place> places;
  for (NodeId id = graph.first_node(); id != NodeId::None; id = graph.next_node(id)) {
    const int32_t at = static_cast<int32_t>(places.size());
    if (is_instruction(graph.node(id))) places.push_back({at, graph.node(id).op->engine == Engine::Compute, at, id});
  }
  for (const CopyInterval& interval : intervals) places[interval.op].issue = interval.issue;
  std::vector<NodeId> copy_of;
  for (const CopyInterval& interval : intervals) copy_of.push_back(places[interval.op].node);
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.key() < b.key(); });
  std::vector<int32_t> position(graph.node_slots(), 0);
  int32_t first_behind = static_cast<int32_t>(places.size());  // in the old order
  for (size_t i = places.size(); i-- > 0;) {
    position[index_of(places[i].node)] = static_cast<int32_t>(i);
    // A node that is ahead of the same instructions as before keeps its place ahead of its views too.
    if (first_behind < places[i].was) move_earlier(graph, places[i].node, places[i + 1].node);
    first_behind = std::min(first_behind, places[i].was);
  }
  std::vector<CopyInFlight> copies;
  for (size_t w = 0; w < intervals.size(); ++w) {
    // Where one copy is waited for and another is issued, the wait comes first.
    auto due = std::partition_point(places.begin(), places.end(),
                                    [&](const Place& place) { return place.issue < intervals[w].done; });
    int32_t done = static_cast<int32_t>(due - places.begin());
    for (NodeId reader : readers_of(graph, graph.node(copy_of[w]).results[0]))
      done = std::min(done, position[index_of(reader)]);
    if (done > position[index_of(copy_of[w])] + 1) copies.push_back({copy_of[w], done});
  }
  return copies;
}

}  // namespace plimsoll
