#include "passes/remat/remat_problem.h"

#include "ir/support/units.h"
#include "passes/analysis/buffer_assignment.h"

#include <map>

namespace plimsoll {
namespace {

class Rematerialiser {
 public:
  explicit Rematerialiser(Graph& graph)
      : graph_(graph), instructions_(instructions_of(graph)), now_(graph.value_count()) {
    for (NodeId id : instructions_) reads_.push_back(graph.node(id).operands);
  }

  std::vector<NodeId> run(const RematPlan& plan, llvm::ArrayRef<ValueId> values) {
    llvm::ArrayRef<Remat> remats = plan.remats;
    size_t next = 0, next_reload = 0;
    for (size_t position = 0; position <= instructions_.size(); ++position) {
      NodeId before = position < instructions_.size() ? instructions_[position] : NodeId::None;
      for (; next_reload < plan.reloads.size() && static_cast<size_t>(plan.reloads[next_reload].before) == position;
           ++next_reload)
        reload(values[plan.reloads[next_reload].value], before);
      for (; next < remats.size() && static_cast<size_t>(remats[next].before) == position; ++next)
        run_again(static_cast<size_t>(remats[next].op), before);
      if (before != NodeId::None) reread(before);
    }
    for (Output& output : graph_.outputs) output.value = latest(output.value, NodeId::None);
    erase_unread_views();
    return std::move(added_);
  }

 private:
  void run_again(size_t op, NodeId before) {
    const Node& node = graph_.node(instructions_[op]);
    llvm::SmallVector<ValueId, 4> operands;
    for (ValueId operand : reads_[op]) operands.push_back(operand == ValueId::None ? operand : latest(operand, before));
    NodeId again = add_again(node, operands, before);
    int64_t bytes = 0;
    for (ValueId result : node.results) bytes += graph_.type(result).bytes();
    graph_.node(again).reason =
        "recomputed before " + reader_name(before) + " instead of keeping " + format_bytes(bytes);
    for (size_t i = 0; i < node.results.size(); ++i)
      now_[index_of(node.results[i])] = {graph_.node(again).results[i], ValueId::None};
    added_.push_back(again);
  }

  void reload(ValueId value, NodeId before) {
    auto [on_host, fresh] = on_host_.try_emplace(value, ValueId::None);
    if (fresh) on_host->second = offload(value);
    NodeId copy = add_copy("to_device", on_host->second, graph_.value(value).name + ".reload", before);
    graph_.node(copy).phase = Phase::Backward;
    graph_.node(copy).reason = "waited on the host until " + reader_name(before);
    now_[index_of(value)] = {graph_.node(copy).results[0], ValueId::None};
  }

  ValueId offload(ValueId value) {
    NodeId producer = graph_.value(value).producer;
    NodeId copy =
        add_copy("to_host", value, graph_.value(value).name + ".host", behind_earlier_results(producer, value));
    graph_.node(copy).phase = graph_.node(producer).phase;
    graph_.node(copy).reason = "waits on the host, which frees " + format_bytes(graph_.type(value).bytes());
    return graph_.node(copy).results[0];
  }

  // Offloads of one producer stand in the order of its results, whichever is reloaded first, because copy intervals are
  // given by the position of the copy.
  NodeId behind_earlier_results(NodeId producer, ValueId value) const {
    llvm::ArrayRef<ValueId> results = graph_.node(producer).results;
    NodeId at = graph_.next_node(producer);
    for (; at != NodeId::None && llvm::is_contained(added_, at); at = graph_.next_node(at)) {
      const auto offloaded = llvm::find(results, graph_.node(at).operands[0]);
      if (graph_.node(at).op->engine != Engine::ToHost || offloaded > llvm::find(results, value)) break;
    }
    return at;
  }

  NodeId add_copy(llvm::StringRef op, ValueId value, llvm::StringRef name, NodeId before) {
    NodeId copy = graph_.add_node(get_op(op), {value}, {}, {graph_.type(value)}, {graph_.unique_name(name)}, before);
    graph_.node(copy).origin = graph_.node(graph_.value(value).producer).origin;
    added_.push_back(copy);
    return copy;
  }

  NodeId add_again(const Node& node, llvm::ArrayRef<ValueId> operands, NodeId before) {
    std::vector<Type> types;
    std::vector<std::string> names;
    for (ValueId result : node.results) {
      types.push_back(graph_.type(result));
      names.push_back(graph_.unique_name(graph_.value(result).name + ".recompute"));
    }
    NodeId again = graph_.add_node(*node.op, operands, node.attrs, types, names, before);
    graph_.node(again).origin = node.origin;
    graph_.node(again).phase = Phase::Backward;
    return again;
  }

  std::string reader_name(NodeId before) const {
    return before == NodeId::None ? "the end" : "%" + graph_.value(graph_.node(before).results[0]).name;
  }

  void reread(NodeId id) {
    for (size_t i = 0; i < graph_.node(id).operands.size(); ++i) {
      ValueId operand = graph_.node(id).operands[i];
      if (operand == ValueId::None) continue;
      if (ValueId now = latest(operand, id); now != operand) graph_.set_operand(id, i, now);
    }
  }

  // The name of `value` at the present place. A view is made again, before `before`, for each occurrence of its source.
  ValueId latest(ValueId value, NodeId before) {
    NodeId producer = graph_.value(value).producer;
    bool view = producer != NodeId::None && graph_.node(producer).op->is_view();
    Now& now = now_[index_of(value)];
    if (!view) return now.value == ValueId::None ? value : now.value;
    size_t seen = graph_.node(producer).op->operand(graph_.node(producer).op->view_of);
    ValueId original = graph_.node(producer).operands[seen], source = latest(original, before);
    if (source == original) return value;
    if (now.source == source) return now.value;
    llvm::SmallVector<ValueId, 4> operands = graph_.node(producer).operands;
    operands[seen] = source;
    now = {graph_.node(add_again(graph_.node(producer), operands, before)).results[0], source};
    return now.value;
  }

  void erase_unread_views() {
    for (NodeId id = graph_.last_node(), previous; id != NodeId::None; id = previous) {
      previous = graph_.node(id).previous;
      if (!graph_.node(id).op->is_view()) continue;
      ValueId view = graph_.node(id).results[0];
      bool shown =
          llvm::any_of(graph_.gradients, [&](const StateGradient& gradient) { return gradient.value == view; });
      if (!shown && !graph_.is_used(view)) graph_.erase_node(id);
    }
  }

  struct Now {
    ValueId value = ValueId::None;   // None: itself
    ValueId source = ValueId::None;  // of a view
  };

  Graph& graph_;
  std::vector<NodeId> instructions_, added_;
  std::map<ValueId, ValueId> on_host_;                // by offloaded value: its copy on the host
  std::vector<llvm::SmallVector<ValueId, 4>> reads_;  // by instruction: its operands before the rewrite
  std::vector<Now> now_;                              // by value of the graph before the rewrite
};

}  // namespace

void delay_free_updates(Graph& graph, llvm::ArrayRef<NodeId> writers) {
  for (size_t i = 0; i < writers.size(); ++i) {
    const Node& node = graph.node(writers[i]);
    if (graph.value(graph.updates[i].value).users.size() > 0) continue;
    bool free = llvm::all_of(node.operands, [&](ValueId operand) {
      if (operand == ValueId::None) return true;
      ValueId root = root_of(graph, operand);
      if (root == graph.updates[i].state) return true;
      bool updated = llvm::any_of(graph.updates, [&](const Update& update) { return update.state == root; });
      NodeId producer = graph.value(root).producer;
      return !updated &&
             (producer == NodeId::None ? graph.find_state(root) != nullptr : !is_instruction(graph.node(producer)));
    });
    if (free) graph.move_before(writers[i], NodeId::None);
  }
}

std::vector<NodeId> rematerialise(Graph& graph, const RematPlan& plan, llvm::ArrayRef<ValueId> values) {
  return Rematerialiser(graph).run(plan, values);
}

}  // namespace plimsoll
