#include "passes/offload.h"

#include "ir/builder.h"

#include <algorithm>
#include <map>

namespace plimsoll {
namespace {

constexpr StateRole roles_for_host[] = {StateRole::Optimizer, StateRole::Gradient, StateRole::Parameter};

// Copies of less take longer to start than to make.
int64_t least_bytes(const DeviceDescription& device) {
  double us_per_byte = 1e-3 / std::max(std::min(device.to_host_gb_per_s, device.from_host_gb_per_s), 1e-9);
  return static_cast<int64_t>(4 * device.launch_us / us_per_byte) + 1;
}

class StateMover {
 public:
  StateMover(Graph& graph, std::vector<NodeId>& writers) : graph_(graph), writers_(writers) {
    int32_t position = 0;
    position_.assign(graph.node_slots(), 0);
    for (NodeId id = graph.first_node(); id != NodeId::None; id = graph.next_node(id)) position_[index_of(id)] = position++;
  }

  void move(State& state) {
    state.space = MemorySpace::Host;
    fetch(state);
    for (size_t i = 0; i < graph_.updates.size(); ++i)
      if (graph_.updates[i].state == state.value) write_back(state, i);
  }

 private:
  void fetch(const State& state) {
    llvm::SmallVector<NodeId, 4> users(graph_.value(state.value).users.begin(), graph_.value(state.value).users.end());
    if (users.empty()) return;
    NodeId first = *std::min_element(users.begin(), users.end(), [&](NodeId a, NodeId b) { return position_[index_of(a)] < position_[index_of(b)]; });
    NodeId copy = add_copy("to_device", state.value, ".fetch", first);
    graph_.node(copy).phase = graph_.node(first).phase;
    graph_.node(copy).origin = state.origin;
    for (NodeId user : users)
      for (size_t i = 0; i < graph_.node(user).operands.size(); ++i)
        if (graph_.node(user).operands[i] == state.value) graph_.set_operand(user, i, graph_.node(copy).results[0]);
  }

  void write_back(const State& state, size_t update) {
    NodeId copy = add_copy("to_host", graph_.updates[update].value, ".host", graph_.next_node(writers_[update]));
    graph_.node(copy).phase = Phase::Update;
    graph_.node(copy).origin = state.origin;
    graph_.updates[update].value = graph_.node(copy).results[0];
    writers_[update] = copy;
  }

  NodeId add_copy(llvm::StringRef op, ValueId value, const char* suffix, NodeId before) {
    std::string name = graph_.unique_name(graph_.value(value).name + suffix);
    return graph_.add_node(get_op(op), {value}, {}, {graph_.type(value)}, {name}, before);
  }

  Graph& graph_;
  std::vector<NodeId>& writers_;
  std::vector<int32_t> position_;  // by node as it was
};

}  // namespace

std::vector<HostChoice> states_for_host(const Program& program, llvm::ArrayRef<std::vector<NodeId>> writers, const DeviceDescription& device) {
  const int64_t least = least_bytes(device);
  std::vector<std::pair<size_t, HostChoice>> choices;  // by when it is updated
  llvm::StringMap<size_t> updated;
  for (size_t f = 0; f < program.functions.size(); ++f) {
    const Graph& graph = program.functions[f];
    std::map<NodeId, size_t> position;
    for (NodeId id : graph.order()) position[id] = position.size();
    for (size_t i = 0; i < graph.updates.size(); ++i)
      updated[graph.value(graph.updates[i].state).name] = f * graph.node_slots() + position[writers[f][i]];
  }
  llvm::StringSet<> seen;
  for (const Graph& graph : program.functions)
    for (const State& state : graph.states) {
      const Value& value = graph.value(state.value);
      if (!llvm::is_contained(roles_for_host, state.role) || value.type.bytes() < least || !seen.insert(value.name).second) continue;
      auto at = updated.find(value.name);
      choices.push_back({at == updated.end() ? 0 : at->second, {value.name, state.role, value.type.bytes()}});
    }
  auto rank = [](const auto& choice) {
    return std::pair(llvm::find(roles_for_host, choice.second.role), choice.first);
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

std::vector<CopyInFlight> issue_copies(Graph& graph, llvm::ArrayRef<CopyWindow> windows) {
  std::vector<NodeId> instructions;
  for (NodeId id = graph.first_node(); id != NodeId::None; id = graph.next_node(id))
    if (is_instruction(graph.node(id))) instructions.push_back(id);
  const size_t count = instructions.size();
  std::vector<size_t> next_compute(count + 1, count);  // by instruction: itself or the next that is no copy
  for (size_t i = count; i-- > 0;)
    next_compute[i] = graph.node(instructions[i]).op->channel == Channel::Compute ? i : next_compute[i + 1];

  std::vector<CopyWindow> by_issue = windows.vec();
  std::stable_sort(by_issue.begin(), by_issue.end(), [](const CopyWindow& a, const CopyWindow& b) { return a.issue < b.issue; });
  for (const CopyWindow& window : by_issue)
    if (size_t at = next_compute[static_cast<size_t>(window.issue)]; window.issue < window.op && at < static_cast<size_t>(window.op))
      graph.move_before(instructions[static_cast<size_t>(window.op)], instructions[at]);

  std::vector<int32_t> position(graph.node_slots(), 0);
  int32_t next = 0;
  for (NodeId id = graph.first_node(); id != NodeId::None; id = graph.next_node(id))
    if (is_instruction(graph.node(id))) position[index_of(id)] = next++;
  auto first_reader = [&](NodeId copy) {
    int32_t first = next;
    for (NodeId reader : readers_of(graph, graph.node(copy).results[0])) first = std::min(first, position[index_of(reader)]);
    return first;
  };
  std::vector<CopyInFlight> copies;
  for (const CopyWindow& window : windows) {
    const NodeId copy = instructions[static_cast<size_t>(window.op)];
    int32_t done = first_reader(copy);
    if (graph.node(copy).op->channel == Channel::ToHost) {
      const size_t due = next_compute[static_cast<size_t>(window.done)];
      done = std::min(done, due < count ? position[index_of(instructions[due])] : next);
    }
    if (done > position[index_of(copy)] + 1) copies.push_back({copy, done});
  }
  return copies;
}

}  // namespace plimsoll
