#include "passes/analysis/buffer_assignment.h"

#include "ir/builder.h"
#include "passes/analysis/cost_model.h"
#include "passes/analysis/launches.h"
#include "passes/analysis/plan_draft.h"

#include <algorithm>
#include <limits>
#include <set>

namespace plimsoll {
namespace {

constexpr int32_t forever = std::numeric_limits<int32_t>::max();

// Can `node` write `result` straight into `state`, as far as its own reads of the state go?
bool can_write_into(const Graph& graph, const Node& node, ValueId result, ValueId state) {
  const bool reads_state = llvm::any_of(
      node.operands, [&](ValueId operand) { return operand != ValueId::None && root_of(graph, operand) == state; });
  return !reads_state || llvm::any_of(in_place_pairs(graph, node), [&](const InPlacePair& pair) {
    return pair.result == result && pair.root == state;
  });
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
    for (NodeId id : instructions_of(graph_)) s_.position[index_of(id)] = s_.instructions++;
  }

  void find_last_uses() {
    for (NodeId id = graph_.first_node(); id != NodeId::None; id = graph_.next_node(id)) {
      int32_t at = s_.position[index_of(id)];
      if (at < 0) continue;
      for (ValueId operand : graph_.node(id).operands)
        if (operand != ValueId::None) read(operand, at);
      for (ValueId result : graph_.node(id).results) read(result, at);
    }
    hold_in_flight();
    for (const Output& output : graph_.outputs) read(output.value, forever);
    for (const Update& update : graph_.updates) read(update.value, forever);
  }

  // What a copy reads and writes keeps its bytes until it is waited for. A collective that takes over the bytes of what
  // it reads needs no others; whether it does is known once all other copies hold theirs.
  void hold_in_flight() {
    std::vector<const CopyInFlight*> in_place;
    for (const CopyInFlight& flight : copies_) {
      const Node& copy = graph_.node(flight.copy);
      hold(copy.results[0], flight.done);
      if (copy.operands.empty()) continue;
      if (takes_over(flight.copy))
        in_place.push_back(&flight);
      else
        hold(root_of(graph_, copy.operands[0]), flight.done);
    }
    for (const CopyInFlight* flight : in_place)
      if (!takes_over(flight->copy)) hold(root_of(graph_, graph_.node(flight->copy).operands[0]), flight->done);
  }

  void hold(ValueId value, int32_t done) {
    read(value, done - 1);
    held_until_[index_of(value)] = std::max(held_until_[index_of(value)], done);
  }

  bool takes_over(NodeId collective) const {
    const Node& node = graph_.node(collective);
    return !is_copy(node.op->engine) && llvm::any_of(in_place_pairs(graph_, node), [&](const InPlacePair& pair) {
      return state_written_by_[index_of(pair.result)] == ValueId::None &&
             gives_bytes(pair, s_.position[index_of(collective)]);
    });
  }

  // Are the bytes of the pair's root not needed behind the instruction, and are they as many as the result's? An empty
  // value has none to give.
  bool gives_bytes(const InPlacePair& pair, int32_t at) const {
    const size_t root = index_of(pair.root);
    const int64_t bytes = graph_.type(pair.root).bytes();
    return s_.last_use[root] == at && held_until_[root] <= at && bytes > 0 && bytes == graph_.type(pair.result).bytes();
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
    if (node.op->is_view()) {
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
    for (const InPlacePair& pair : in_place_pairs(graph_, node))
      if (pair.result == result && reuse_in_place(node, pair, at)) return;
    open(result, Buffer::Kind::Transient, at, written_space(node.op->engine));
  }

  // The bytes of the pair's root become the result's where they are not needed after the node.
  bool reuse_in_place(const Node& node, const InPlacePair& pair, int32_t at) {
    const auto [result, root] = pair;
    int32_t buffer = s_.buffer_of[index_of(root)];
    Buffer& bytes = s_.buffers[buffer];
    bool whole_function = bytes.kind == Buffer::Kind::State || bytes.kind == Buffer::Kind::Constant;
    if (whole_function || !gives_bytes(pair, at) || bytes.bytes != graph_.type(result).bytes()) return false;
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

// What updates that may share a launch make, as norms of gradients, lives from the first of them on: where one took
// bytes that another reads, the launch would end between the two.
class SharedLaunches {
 public:
  SharedLaunches(const Graph& graph, llvm::ArrayRef<NodeId> writers, const KernelCatalog& catalog,
                 BufferAssignment& assignment)
      : graph_(graph), catalog_(catalog), writers_(writers.begin(), writers.end()), s_(assignment) {}

  void widen_lives() {
    for (NodeId id = graph_.first_node(); id != NodeId::None; id = graph_.next_node(id)) {
      const int32_t at = s_.position[index_of(id)];
      if (at < 0) continue;
      const std::string kind = kind_of(id);
      if (kind.empty() || kind != kind_) begin_ = at;
      kind_ = kind;
      for (ValueId result : graph_.node(id).results) {
        Buffer& buffer = s_.buffers[s_.buffer_of[index_of(result)]];
        if (!kind.empty() && buffer.kind == Buffer::Kind::Transient && buffer.first == at) buffer.first = begin_;
      }
    }
  }

 private:
  // Empty: it does not share.
  std::string kind_of(NodeId id) const {
    if (writers_.count(id) == 0) return "";
    const KernelCandidate kernel = chosen_kernel(graph_, graph_.node(id), catalog_);
    return kernel.shares_launches ? kernel.name + " " + launch_kind(graph_, graph_.node(id)) : "";
  }

  const Graph& graph_;
  const KernelCatalog& catalog_;
  std::set<NodeId> writers_;
  BufferAssignment& s_;
  std::string kind_;   // of the instruction before
  int32_t begin_ = 0;  // of the launch
};

const char* kind_name(Buffer::Kind kind) {
  switch (kind) {
    case Buffer::Kind::State: return "state";
    case Buffer::Kind::Constant: return "constant";
    case Buffer::Kind::Input: return "input";
    case Buffer::Kind::Transient: return "buffer";
    case Buffer::Kind::Part: return "part";
  }
  return "";
}

// One line per buffer: "buffer %a, %c: 400 bytes, alive 0..2". A workspace is named after its node's first result.
void report_buffers(const Graph& graph, const BufferAssignment& assignment, PassContext& context) {
  std::vector<std::string> names(assignment.buffers.size());
  for (size_t v = 0; v < graph.value_count(); ++v)
    if (const int32_t buffer = assignment.buffer_of[v]; buffer >= 0)
      names[buffer] += (names[buffer].empty() ? "%" : ", %") + graph.value(static_cast<ValueId>(v)).name;
  for (NodeId id = graph.first_node(); id != NodeId::None; id = graph.next_node(id))
    if (const int32_t buffer = assignment.workspace_of[index_of(id)]; buffer >= 0)
      names[buffer] = "workspace of %" + graph.value(graph.node(id).results[0]).name;
  for (size_t i = 0; i < assignment.buffers.size(); ++i) {
    const Buffer& buffer = assignment.buffers[i];
    context.report(llvm::Twine(kind_name(buffer.kind)) + " " + names[i] + ": " + llvm::Twine(buffer.bytes) +
                   " bytes, alive " + llvm::Twine(buffer.first) + ".." + llvm::Twine(buffer.last) +
                   (buffer.space == MemorySpace::Host ? ", on the host" : ""));
  }
}

// The function changes only where an update needs a copy to be written into its state.
Result<bool> run_assign_buffers(PlanDraft& draft, size_t f, PassContext& context) {
  const Graph& graph = draft.program.functions[f];
  const size_t nodes = graph.node_slots();
  const std::vector<NodeId>& writers = draft.writers(f);
  FunctionDraft& function = draft.functions[f];
  function.buffers = assign_buffers(graph, writers, function.copies, *draft.catalog);
  report_buffers(graph, *function.buffers, context);
  return graph.node_slots() != nodes;
}

}  // namespace

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

BufferAssignment assign_buffers(const Graph& graph, llvm::ArrayRef<NodeId> writers, llvm::ArrayRef<CopyInFlight> copies,
                                const KernelCatalog& catalog) {
  BufferAssignment assignment = Assigner(graph, writers, copies).run();
  SharedLaunches(graph, writers, catalog, assignment).widen_lives();
  assignment.workspace_of.assign(graph.node_slots(), -1);
  std::vector<int32_t> last_of = assignment.position;  // by node: the instruction up to which it is at work
  for (const CopyInFlight& copy : copies) last_of[index_of(copy.copy)] = copy.done - 1;
  for (NodeId id = graph.first_node(); id != NodeId::None; id = graph.next_node(id)) {
    const int32_t at = assignment.position[index_of(id)];
    const int64_t bytes = at < 0 ? 0 : chosen_kernel(graph, graph.node(id), catalog).workspace_bytes;
    if (bytes == 0) continue;
    assignment.workspace_of[index_of(id)] = static_cast<int32_t>(assignment.buffers.size());
    assignment.buffers.push_back(
        {Buffer::Kind::Transient, ValueId::None, MemorySpace::Device, bytes, at, last_of[index_of(id)]});
  }
  return assignment;
}

constinit const PassInfo pass_assign_buffers{
    .name = "assign-buffers",
    .summary = "decides which values share bytes: views, results written over an operand, updates into their state",
    .plan = run_assign_buffers,
};

}  // namespace plimsoll
