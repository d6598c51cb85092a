#include "passes/analysis/buffer_assignment.h"

#include "ir/builder.h"

#include <algorithm>
#include <limits>

namespace plimsoll {
namespace {

constexpr int32_t forever = std::numeric_limits<int32_t>::max();

bool may_overwrite(const Node& node, ValueId result, size_t operand) {
  return llvm::any_of(node.op->in_place, [&](const InPlace& pair) {
    return pair.applies_to(node) && node.results[pair.result] == result && static_cast<size_t>(pair.operand) == operand;
  });
}

// Does `node` read the bytes of `root` through any operand but `except`?
bool reads_besides(const Graph& graph, const Node& node, ValueId root, size_t except) {
  for (size_t i = 0; i < node.operands.size(); ++i)
    if (i != except && node.operands[i] != ValueId::None && root_of(graph, node.operands[i]) == root) return true;
  return false;
}

// Can `node` write `result` straight into `state`, as far as its own reads of the state go?
bool can_write_into(const Graph& graph, const Node& node, ValueId result, ValueId state) {
  for (size_t i = 0; i < node.operands.size(); ++i) {
    if (node.operands[i] == ValueId::None || root_of(graph, node.operands[i]) != state) continue;
    if (!may_overwrite(node, result, i) || reads_besides(graph, node, state, i)) return false;
  }
  return true;
}

class Assigner {
 public:
  Assigner(const Graph& graph, llvm::ArrayRef<NodeId> writers, llvm::ArrayRef<CopyInFlight> copies)
      : graph_(graph), copies_(copies) {
    s_.buffer_of.assign(graph.value_count(), -1);
    s_.in_place_of.assign(graph.value_count(), ValueId::None);
    s_.last_use.assign(graph.value_count(), -1);
    s_.position.assign(graph.node_slots(), -1);
    held_until_.assign(graph.value_count(), -1);
    state_written_by_.assign(graph.value_count(), ValueId::None);
    for (size_t i = 0; i < writers.size(); ++i)
      state_written_by_[index_of(graph.updates[i].value)] = graph.updates[i].state;
  }

  BufferAssignment run() {
    number_instructions();
    find_last_uses();
    for (const State& state : graph_.states) open(state.value, Buffer::Kind::State, 0, state.space);
    for (ValueId input : graph_.inputs) open(input, Buffer::Kind::Input, 0);
    for (NodeId id = graph_.first_node(); id != NodeId::None; id = graph_.next_node(id)) visit(id);
    return std::move(s_);
  }

 private:
  void number_instructions() {
    for (NodeId id = graph_.first_node(); id != NodeId::None; id = graph_.next_node(id))
      if (is_instruction(graph_.node(id))) s_.position[index_of(id)] = s_.instructions++;
  }

  void find_last_uses() {
    for (NodeId id = graph_.first_node(); id != NodeId::None; id = graph_.next_node(id)) {
      int32_t at = s_.position[index_of(id)];
      if (at < 0) continue;
      for (ValueId operand : graph_.node(id).operands)
        if (operand != ValueId::None) read(operand, at);
      for (ValueId result : graph_.node(id).results) read(result, at);
    }
    for (const CopyInFlight& flight : copies_) {
      const Node& copy = graph_.node(flight.copy);
      for (ValueId held : {root_of(graph_, copy.operands[0]), copy.results[0]}) {
        read(held, flight.done - 1);
        held_until_[index_of(held)] = std::max(held_until_[index_of(held)], flight.done);
      }
    }
    for (const Output& output : graph_.outputs) read(output.value, forever);
    for (const Update& update : graph_.updates) read(update.value, forever);
  }

  void read(ValueId value, int32_t at) {
    int32_t& last = s_.last_use[index_of(root_of(graph_, value))];
    last = std::max(last, at);
  }

  int32_t clamp(int32_t position) const { return std::max(0, std::min(position, s_.instructions - 1)); }

  void open(ValueId value, Buffer::Kind kind, int32_t first, MemorySpace space = MemorySpace::Device) {
    bool whole = kind == Buffer::Kind::State || kind == Buffer::Kind::Constant;
    int32_t last = whole ? forever : std::max(first, s_.last_use[index_of(value)]);
    s_.buffer_of[index_of(value)] = static_cast<int32_t>(s_.buffers.size());
    s_.buffers.push_back({kind, value, space, graph_.type(value).bytes(), first, clamp(last)});
  }

  void visit(NodeId id) {
    const Node& node = graph_.node(id);
    int32_t at = s_.position[index_of(id)];
    if (node.op->view_of >= 0) {
      s_.buffer_of[index_of(node.results[0])] = s_.buffer_of[index_of(root_of(graph_, node.results[0]))];
      return;
    }
    if (at < 0) return open(node.results[0], Buffer::Kind::Constant, 0);
    for (ValueId result : node.results) place_result(node, result, at);
  }

  void place_result(const Node& node, ValueId result, int32_t at) {
    if (ValueId state = state_written_by_[index_of(result)]; state != ValueId::None) {
      s_.buffer_of[index_of(result)] = s_.buffer_of[index_of(state)];
      for (ValueId operand : node.operands)
        if (operand != ValueId::None && root_of(graph_, operand) == state) s_.in_place_of[index_of(result)] = state;
      return;
    }
    for (const InPlace& pair : node.op->in_place)
      if (pair.applies_to(node) && node.results[pair.result] == result &&
          reuse_in_place(node, result, static_cast<size_t>(pair.operand), at))
        return;
    open(result, Buffer::Kind::Transient, at, written_space(node.op->engine));
  }

  bool reuse_in_place(const Node& node, ValueId result, size_t operand, int32_t at) {
    ValueId root = root_of(graph_, node.operands[operand]);
    int32_t buffer = s_.buffer_of[index_of(root)];
    Buffer& bytes = s_.buffers[static_cast<size_t>(buffer)];
    bool whole_function = bytes.kind == Buffer::Kind::State || bytes.kind == Buffer::Kind::Constant;
    if (whole_function || s_.last_use[index_of(root)] != at || bytes.bytes != graph_.type(result).bytes()) return false;
    if (held_until_[index_of(root)] > at || reads_besides(graph_, node, root, operand)) return false;
    for (ValueId other : node.results)
      if (other != result && s_.buffer_of[index_of(other)] == buffer) return false;
    s_.buffer_of[index_of(result)] = buffer;
    s_.in_place_of[index_of(result)] = root;
    bytes.last = std::max(bytes.last, clamp(s_.last_use[index_of(result)]));
    return true;
  }

  const Graph& graph_;
  BufferAssignment s_;
  llvm::ArrayRef<CopyInFlight> copies_;
  std::vector<ValueId> state_written_by_;  // by value
  std::vector<int32_t> held_until_;        // by root value: a copy of it is waited for there
};

}  // namespace

bool is_instruction(const Node& node) { return node.op->view_of < 0 && node.op->name != "constant"; }

ValueId root_of(const Graph& graph, ValueId value) {
  for (;;) {
    NodeId producer = graph.value(value).producer;
    if (producer == NodeId::None) return value;
    const Node& node = graph.node(producer);
    if (node.op->view_of < 0) return value;
    value = node.operands[static_cast<size_t>(node.op->view_of)];
  }
}

llvm::SmallVector<NodeId, 4> readers_of(const Graph& graph, ValueId value) {
  llvm::SmallVector<NodeId, 4> readers;
  for (NodeId user : graph.value(value).users) {
    const Node& node = graph.node(user);
    if (node.op->view_of < 0) {
      readers.push_back(user);
      continue;
    }
    llvm::SmallVector<NodeId, 4> behind = readers_of(graph, node.results[0]);
    readers.append(behind.begin(), behind.end());
  }
  return readers;
}

std::vector<NodeId> make_updates_writable(Graph& graph) {
  Builder b(graph);
  b.phase = Phase::Update;
  std::vector<NodeId> writers;
  std::vector<bool> taken(graph.value_count(), false);
  for (Update& update : graph.updates) {
    NodeId producer = graph.value(update.value).producer;
    bool direct = producer != NodeId::None && !taken[index_of(update.value)] && is_instruction(graph.node(producer)) &&
                  can_write_into(graph, graph.node(producer), update.value, update.state);
    if (!direct) {
      update.value = b.emit("copy", {update.value}, {}, graph.value(update.state).name + ".next");
      producer = graph.value(update.value).producer;
      taken.resize(graph.value_count(), false);
    }
    taken[index_of(update.value)] = true;
    writers.push_back(producer);
  }
  return writers;
}

BufferAssignment assign_buffers(const Graph& graph, llvm::ArrayRef<NodeId> writers,
                                llvm::ArrayRef<CopyInFlight> copies) {
  return Assigner(graph, writers, copies).run();
}

}  // namespace plimsoll
