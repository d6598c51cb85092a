// The planning step schedule chooses the order of a function's instructions so that the peak of live bytes is low. It
// keeps what the graph computes: each update comes after every other reader of its state.
//
// It turns the graph into plain data (buffers, readers, writers, must-come-earlier edges),
// lets order.h search, and puts views and constants back beside their readers.

#include "ir/awaited.h"
#include "ir/support/align.h"
#include "ir/support/units.h"
#include "passes/analysis/aliasing.h"
#include "passes/analysis/cost_model.h"
#include "passes/analysis/launches.h"
#include "passes/analysis/plan_draft.h"
#include "passes/schedule/order.h"

#include <algorithm>
#include <numeric>
#include <queue>

namespace plimsoll {
namespace {

// One of these of the peak, and no more than these bytes, may wait until one launch does several updates or casts. So
// many bytes of gradients take an update thirty times as long as a launch.
constexpr int64_t shares_that_wait = 64, most_bytes_that_wait = int64_t{48} << 20;

struct ScheduleReport {
  int64_t peak_before_bytes = 0;  // transient bytes in the order that derivation left
  int64_t peak_after_bytes = 0;
  // All nodes in the derived order with each update as soon as it may run. Every gradient is used up at once there, so
  // it has less alive away from the peak, which recompute builds on.
  std::vector<NodeId> early_updates;
  // In the chosen order, but that what frees memory comes early, and small updates and casts stand side by side.
  std::vector<NodeId> joined_order;
};

// Sizes count in multiples of `alignment`; workspaces count, by the kernel that will run. Fails where two updates each
// need the other's old value.
class Scheduler {
 public:
  Scheduler(Graph& graph, llvm::ArrayRef<NodeId> writers, const KernelCatalog& catalog, int64_t alignment)
      : graph_(graph),
        catalog_(catalog),
        alignment_(alignment),
        instructions_(instructions_of(graph)),
        writes_state_(graph.node_slots(), false),
        instruction_of_(graph.node_slots(), -1) {
    for (NodeId writer : writers) writes_state_[index_of(writer)] = true;
    for (size_t i = 0; i < instructions_.size(); ++i)
      instruction_of_[index_of(instructions_[i])] = static_cast<int32_t>(i);
    number_buffers();
    problem_.nodes.resize(instructions_.size());
    for (size_t i = 0; i < instructions_.size(); ++i) fill_node(i);
    add_update_edges(writers);
    add_stage_edges();
  }

  Result<ScheduleReport> run() {
    Result<std::vector<int32_t>> start = early_updates_first();
    if (!start) return start.takeError();
    OrderProblem sorted = permuted(problem_, *start);
    std::vector<int32_t> order(start->size());
    std::iota(order.begin(), order.end(), 0);
    ScheduleReport report;
    report.peak_before_bytes = peak_bytes(sorted, order);
    if (!keeps_order_) order = order_for_low_peak(sorted, {});
    // Sums over ranks have more to run beside the earlier gradients are made.
    if (!keeps_order_ && sums_over_ranks_) order = with_frees_early(sorted, order);
    // Updates of a stage fill the time in which it waits for others.
    if (!keeps_order_) report.joined_order = with_views(named(*start, joined(sorted, order, *start)));
    order = with_updates_gathered(sorted, order, update_kinds(*start), 0);
    report.peak_after_bytes = peak_bytes(sorted, order);
    report.early_updates = with_views(*start);
    order = named(*start, std::move(order));
    graph_.reorder(with_views(order));
    return report;
  }

 private:
  std::vector<int32_t> joined(const OrderProblem& sorted, llvm::ArrayRef<int32_t> order,
                              llvm::ArrayRef<int32_t> start) const {
    const int64_t most_bytes = std::min(peak_bytes(sorted, order) / shares_that_wait, most_bytes_that_wait);
    const std::vector<int32_t> early = with_frees_early(sorted, order);
    return with_casts_gathered(sorted, with_updates_gathered(sorted, early, update_kinds(start), most_bytes),
                               cast_kinds(start), most_bytes);
  }

  static std::vector<int32_t> named(llvm::ArrayRef<int32_t> start, std::vector<int32_t> order) {
    for (int32_t& node : order) node = start[node];
    return order;
  }

  // Values that share bytes whatever the order share a buffer: views, and results over an operand nobody else reads.
  void number_buffers() {
    buffer_of_.assign(graph_.value_count(), -1);
    for (const State& state : graph_.states) new_buffer(state.value, true);
    for (ValueId input : graph_.inputs) new_buffer(input, false);
    for (NodeId id = graph_.first_node(); id != NodeId::None; id = graph_.next_node(id)) {
      const Node& node = graph_.node(id);
      for (ValueId result : node.results) {
        if (node.op->is_view())
          buffer_of_[index_of(result)] = buffer_of_[index_of(root_of(graph_, result))];
        else if (!is_instruction(node))
          new_buffer(result, true);
        else if (int32_t shared = sole_reader_buffer(node, result); shared >= 0)
          buffer_of_[index_of(result)] = shared;
        else
          new_buffer(result, false);
      }
    }
    for (const Output& output : graph_.outputs) problem_.live_out[buffer(output.value)] = true;
    for (const Update& update : graph_.updates) {
      buffer_of_[index_of(update.value)] = buffer_of_[index_of(update.state)];
    }
  }

  size_t buffer(ValueId value) const { return static_cast<size_t>(buffer_of_[index_of(value)]); }

  void new_buffer(ValueId value, bool pinned) {
    buffer_of_[index_of(value)] = static_cast<int32_t>(problem_.buffer_bytes.size());
    problem_.buffer_bytes.push_back(align_up(graph_.type(value).bytes(), alignment_));
    problem_.pinned.push_back(pinned);
    problem_.live_out.push_back(false);
  }

  int32_t sole_reader_buffer(const Node& node, ValueId result) const {
    for (const InPlacePair& pair : in_place_pairs(graph_, node)) {
      if (pair.result != result) continue;
      if (problem_.pinned[buffer(pair.root)] || graph_.value(pair.root).producer == NodeId::None) continue;
      if (readers_of(graph_, pair.root).size() == 1) return buffer_of_[index_of(pair.root)];
    }
    return -1;
  }

  void fill_node(size_t i) {
    const Node& node = graph_.node(instructions_[i]);
    OrderNode& out = problem_.nodes[i];
    for (ValueId operand : node.operands) {
      if (operand == ValueId::None) continue;
      out.inputs.push_back(buffer_of_[index_of(operand)]);
      NodeId producer = graph_.value(root_of(graph_, operand)).producer;
      if (producer != NodeId::None && instruction_of_[index_of(producer)] >= 0)
        out.after.push_back(instruction_of_[index_of(producer)]);
    }
    for (ValueId result : node.results) out.outputs.push_back(buffer_of_[index_of(result)]);
    out.scratch_bytes = chosen_kernel(graph_, node, catalog_).workspace_bytes;
  }

  void add_update_edges(llvm::ArrayRef<NodeId> writers) {
    for (size_t i = 0; i < writers.size(); ++i) {
      auto& after = problem_.nodes[instruction_of_[index_of(writers[i])]].after;
      for (NodeId reader : readers_of(graph_, graph_.updates[i].state))
        if (reader != writers[i]) after.push_back(instruction_of_[index_of(reader)]);
    }
  }

  // All stages of a pipeline take what they do together in one order, and its schedule is the derived order.
  void add_stage_edges() {
    int32_t last = -1;
    for (size_t i = 0; i < instructions_.size(); ++i) {
      sums_over_ranks_ |= graph_.node(instructions_[i]).op->engine == Engine::Ranks;
      if (!is_awaited(graph_.node(instructions_[i]))) continue;
      if (last >= 0) problem_.nodes[i].after.push_back(last);
      last = static_cast<int32_t>(i);
      keeps_order_ = true;
    }
  }

  // The derived order, made to respect every edge, with each update as soon as it may run: it ends the lives of a
  // gradient and of what computed it.
  Result<std::vector<int32_t>> early_updates_first() const {
    size_t n = instructions_.size();
    std::vector<int32_t> waiting(n, 0);
    std::vector<llvm::SmallVector<int32_t, 4>> followers(n);
    for (size_t i = 0; i < n; ++i)
      for (int32_t before : problem_.nodes[i].after) {
        ++waiting[i];
        followers[before].push_back(static_cast<int32_t>(i));
      }
    using Key = std::pair<int, int32_t>;  // updates before everything else, then the derived order
    std::priority_queue<Key, std::vector<Key>, std::greater<>> ready;
    auto push = [&](int32_t i) {
      bool update = graph_.node(instructions_[i]).phase == Phase::Update;
      ready.push({update ? 0 : 1, i});
    };
    for (size_t i = 0; i < n; ++i)
      if (waiting[i] == 0) push(static_cast<int32_t>(i));
    std::vector<int32_t> order;
    while (!ready.empty()) {
      int32_t i = ready.top().second;
      ready.pop();
      order.push_back(i);
      for (int32_t follower : followers[i])
        if (--waiting[follower] == 0) push(follower);
    }
    if (order.size() == n) return order;
    return model_error("schedule: " + llvm::Twine(n - order.size()) +
                       " instructions wait for each other: two states each take the other's old value");
  }

  // By place in `order`: a number for each kind of update and of other writers of states, -1 for the rest. A launch
  // does the same to several tensors of the same types.
  std::vector<int32_t> update_kinds(llvm::ArrayRef<int32_t> order) const {
    return kinds_of(order,
                    [&](NodeId id) { return graph_.node(id).phase == Phase::Update || writes_state_[index_of(id)]; });
  }

  std::vector<int32_t> cast_kinds(llvm::ArrayRef<int32_t> order) const {
    return kinds_of(order, [&](NodeId id) { return graph_.node(id).op->name == "cast"; });
  }

  template <typename F>
  std::vector<int32_t> kinds_of(llvm::ArrayRef<int32_t> order, F is_of_interest) const {
    llvm::StringMap<int32_t> number_of;
    std::vector<int32_t> kinds;
    for (int32_t i : order) {
      const NodeId id = instructions_[i];
      const auto next = static_cast<int32_t>(number_of.size());
      kinds.push_back(
          is_of_interest(id) ? number_of.try_emplace(launch_kind(graph_, graph_.node(id)), next).first->second : -1);
    }
    return kinds;
  }

  // Views and constants go right before their first reader; those nobody reads go last.
  std::vector<NodeId> with_views(llvm::ArrayRef<int32_t> order) const {
    std::vector<bool> placed(graph_.node_slots(), false);
    std::vector<NodeId> result;
    auto place = [&](auto&& self, NodeId id) -> void {
      if (placed[index_of(id)]) return;
      placed[index_of(id)] = true;
      for (ValueId operand : graph_.node(id).operands) {
        if (operand == ValueId::None) continue;
        NodeId producer = graph_.value(operand).producer;
        if (producer != NodeId::None && !is_instruction(graph_.node(producer))) self(self, producer);
      }
      result.push_back(id);
    };
    for (int32_t i : order) place(place, instructions_[i]);
    for (NodeId id : graph_.order()) place(place, id);
    return result;
  }

  Graph& graph_;
  const KernelCatalog& catalog_;
  int64_t alignment_;
  std::vector<NodeId> instructions_;
  bool keeps_order_ = false, sums_over_ranks_ = false;
  std::vector<bool> writes_state_;       // by node
  std::vector<int32_t> instruction_of_;  // by node
  std::vector<int32_t> buffer_of_;       // by value
  OrderProblem problem_;
};

Result<bool> run_schedule(PlanDraft& draft, size_t f, PassContext& context) {
  Graph& graph = draft.program.functions[f];
  const std::vector<NodeId> before = graph.order();
  Result<ScheduleReport> report =
      Scheduler(graph, draft.writers(f), *draft.catalog, draft.device.alignment_bytes).run();
  if (!report) return report.takeError();
  draft.drop_layout(f);
  draft.functions[f].other_order = std::move(report->early_updates);
  draft.functions[f].joined_order = std::move(report->joined_order);
  const std::string peaks = "transient peak " + format_bytes(report->peak_before_bytes) + " as derived, " +
                            format_bytes(report->peak_after_bytes) + " as ordered";
  context.decide(graph.name, report->peak_after_bytes < report->peak_before_bytes ? "reordered" : "derived order kept",
                 peaks);
  context.report(peaks);
  return graph.order() != before;
}

}  // namespace

constinit const PassInfo pass_schedule{
    .name = "schedule",
    .summary = "orders each function's instructions for a low peak of live bytes",
    .plan = run_schedule,
};

}  // namespace plimsoll
