#include "ir/awaited.h"
#include "ir/machine/engine_clock.h"
#include "passes/analysis/aliasing.h"
#include "passes/analysis/cost_model.h"
#include "passes/analysis/plan_draft.h"
#include "passes/analysis/transfer_waits.h"
#include "passes/offload/offload_rewrite.h"
#include "passes/offload/overlap.h"
#include "passes/remat/remat_problem.h"

#include <algorithm>
#include <limits>

// Lets collectives run beside computing. What reads no sum of gradients keeps its order; each gradient's sum is issued
// as soon as its bucket is complete, and what reads it waits in a queue until the sum is predicted to be through and
// the next bucket is issued, since ranks are never quite in step. Buckets are runs of neighbours, which the runtime
// launches as one. Nothing is left to compute beside the last bucket but updates: those of the buckets before it are
// kept for that. Sums of what only inputs tell, such as the number of labels, come first, where no rank waits for
// another's layers. Then every collective gets the interval in which it runs.
//
// Why it is right: no node comes before what it reads, and the writer of a state not before the state's other readers.
// What stages of a pipeline do together keeps its order.

namespace plimsoll {
namespace {

// A sum of gradients of this many bytes moves them at four fifths of the link's speed at least. Where a collective's
// base is short, launches are no shorter than this, since computing loses some microseconds to each.
int64_t min_bucket_bytes(const DeviceDescription& device) {
  constexpr double least_us = 120;
  const AxisLink link = device.link_of(MeshAxis::Data);
  return static_cast<int64_t>(std::max(least_us, 4 * link.base_us) * link.gb_per_s * 1e3);
}

class Overlapper {
 public:
  Overlapper(PlanDraft& draft, size_t function)
      : draft_(draft),
        index_(function),
        graph_(draft.program.functions[function]),
        function_(draft.functions[function]),
        writers_(draft.writers(function)) {}

  int64_t run() {
    find_states_written();
    split_order();
    if (collectives_.empty()) return 0;  // the order stays, and with it the waits that refer to it
    if (sum_inputs_first()) split_order();
    make_buckets();
    keep_for_last_bucket();
    clock_.restart(draft_.device.duplex_shares(), draft_.device.interference_of_copies(),
                   draft_.device.collective_shares());
    place_.assign(graph_.node_slots(), none);
    emitted_.assign(graph_.node_slots(), false);
    for (size_t i = 0; i < early_.size(); ++i) {
      emit_late(false);
      emit(early_[i]);
      issue_buckets(i);
    }
    issue_buckets(early_.size());
    emit_late(true);
    graph_.reorder(order_);
    draft_.drop_layout(index_);
    return set_intervals();
  }

 private:
  struct Bucket {
    size_t ready = 0;  // the place in early_ of the last node that one of its members reads
    std::vector<NodeId> members;
  };

  bool meets_stage(NodeId id) const { return is_awaited(graph_.node(id)); }
  bool is_collective(NodeId id) const { return graph_.node(id).op->engine == Engine::Ranks && !meets_stage(id); }

  bool is_read_by_updates_alone(NodeId id) const {
    return llvm::all_of(graph_.node(id).results, [&](ValueId result) {
      return llvm::all_of(graph_.value(result).users, [&](NodeId user) {
        const Node& reader = graph_.node(user);
        return reader.phase == Phase::Update || (reader.op->name == "cast" && is_read_by_updates_alone(user));
      });
    });
  }

  // Moves early collectives whose operands follow from inputs alone to the front, with what they read. Returns whether
  // there are any.
  bool sum_inputs_first() {
    std::vector<bool> from_inputs(graph_.value_count(), false);
    std::vector<NodeId> sums, first, others;
    for (const ValueId input : graph_.inputs) from_inputs[index_of(input)] = true;
    for (NodeId id : graph_.order()) {
      const Node& node = graph_.node(id);
      const bool follows = !meets_stage(id) && llvm::all_of(node.operands, [&](ValueId operand) {
        return operand == ValueId::None || from_inputs[index_of(operand)];
      });
      for (ValueId result : node.results) from_inputs[index_of(result)] = follows;
      if (follows && is_collective(id)) sums.push_back(id);
    }
    if (sums.empty()) return false;
    std::vector<bool> moved(graph_.node_slots(), false);
    while (!sums.empty()) {
      const NodeId id = sums.back();
      sums.pop_back();
      if (moved[index_of(id)]) continue;
      moved[index_of(id)] = true;
      for (ValueId operand : graph_.node(id).operands)
        if (operand != ValueId::None && graph_.value(operand).producer != NodeId::None)
          sums.push_back(graph_.value(operand).producer);
    }
    for (NodeId id : graph_.order()) (moved[index_of(id)] ? first : others).push_back(id);
    llvm::append_range(first, others);
    graph_.reorder(first);
    return true;
  }

  // Collectives that updates alone read and that read none of each other, the nodes before them, and those behind them,
  // to which the writers of states that these read belong, and what stages do together behind the first such node.
  void split_order() {
    std::vector<bool> behind(graph_.value_count(), false), read_behind(graph_.value_count(), false);
    std::vector<size_t> made_at(graph_.value_count(), 0);
    bool meets_late = false;
    collectives_.clear(), early_.clear(), late_.clear();
    early_meetings_ = 0;
    for (NodeId id : graph_.order()) {
      const Node& node = graph_.node(id);
      size_t ready = 0;
      const ValueId written = written_by_[index_of(id)];
      bool reads_late = written != ValueId::None && read_behind[index_of(written)];
      for (ValueId operand : node.operands) {
        if (operand == ValueId::None) continue;
        reads_late |= behind[index_of(operand)];
        ready = std::max(ready, made_at[index_of(operand)]);
      }
      if (meets_stage(id)) {
        meets_late |= reads_late;
        reads_late = meets_late;
        early_meetings_ += !reads_late;
      }
      const bool first = !reads_late && is_collective(id) && is_read_by_updates_alone(id);
      if (first)
        collectives_.push_back({ready, id});
      else
        (reads_late ? late_ : early_).push_back(id);
      for (ValueId operand : node.operands)
        if (operand != ValueId::None && (first || reads_late)) read_behind[index_of(root_of(graph_, operand))] = true;
      for (ValueId result : node.results) {
        behind[index_of(result)] = first || reads_late;
        made_at[index_of(result)] = early_.empty() ? 0 : early_.size() - 1;
      }
    }
  }

  void make_buckets() {
    std::stable_sort(collectives_.begin(), collectives_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    int64_t bytes = 0;
    for (const auto& [ready, id] : collectives_) {
      const Node& node = graph_.node(id);
      const bool joins = !buckets_.empty() && bytes < min_bucket_bytes(draft_.device) &&
                         graph_.node(buckets_.back().members.front()).op == node.op;
      if (!joins) buckets_.emplace_back(), bytes = 0;
      buckets_.back().ready = ready;
      buckets_.back().members.push_back(id);
      bytes += graph_.type(node.operands[0]).bytes();
    }
  }

  // Updates of the buckets ahead of the last one wait until that is issued, as many of them as its sums take. Where
  // updates are gathered or summed themselves, the link has no time for them then.
  void keep_for_last_bucket() {
    bucket_of_.assign(graph_.node_slots(), none);
    for (size_t b = 0; b < buckets_.size(); ++b)
      for (NodeId id : buckets_[b].members) bucket_of_[index_of(id)] = static_cast<int64_t>(b);
    first_kept_ = buckets_.size() - 1;
    if (llvm::any_of(late_, [&](NodeId id) { return is_collective(id); })) return;
    std::vector<double> update_us(buckets_.size(), 0);  // of what reads the bucket's sums
    for (NodeId id : late_) {
      const int64_t bucket = last_bucket_read(id);
      if (bucket != none) update_us[static_cast<size_t>(bucket)] += cost_us(id);
    }
    double left_us = 0;
    for (NodeId id : buckets_.back().members) left_us += cost_us(id);
    for (; first_kept_ > 0 && left_us > 0; --first_kept_) left_us -= update_us[first_kept_ - 1];
  }

  int64_t last_bucket_read(NodeId id) const {
    int64_t last = none;
    for (ValueId operand : graph_.node(id).operands) {
      const NodeId producer = operand == ValueId::None ? NodeId::None : graph_.value(operand).producer;
      if (producer != NodeId::None) last = std::max(last, bucket_of_[index_of(producer)]);
    }
    return last;
  }

  void find_states_written() {
    written_by_.assign(graph_.node_slots(), ValueId::None);
    for (size_t i = 0; i < writers_.size(); ++i) written_by_[index_of(writers_[i])] = graph_.updates[i].state;
  }

  double cost_us(NodeId id) const {
    const Node& node = graph_.node(id);
    if (!is_instruction(node)) return 0;
    return predicted_us(graph_, node, chosen_kernel(graph_, node, *draft_.catalog), draft_.device);
  }

  // What computing waits for a collective that keeps its place is not known yet and not counted.
  void emit(NodeId id) {
    if (is_collective(id))
      clock_.issue_collective(cost_us(id), false);
    else
      clock_.compute(cost_us(id));
    early_meetings_ -= meets_stage(id) && early_meetings_ > 0;
    add(id);
  }

  void add(NodeId id) {
    order_.push_back(id);
    emitted_[index_of(id)] = true;
  }

  // Those that are complete when the early node at that place is through.
  void issue_buckets(size_t place) {
    for (; issued_ < buckets_.size() && buckets_[issued_].ready <= place; ++issued_) issue(buckets_[issued_]);
  }

  // One launch.
  void issue(const Bucket& bucket) {
    for (NodeId id : bucket.members) {
      place_[index_of(id)] = static_cast<int64_t>(clock_.issue_collective(cost_us(id), id != bucket.members.front()));
      add(id);
    }
  }

  bool is_through(NodeId id) const {
    return place_[index_of(id)] == none || clock_.is_through(static_cast<size_t>(place_[index_of(id)]));
  }

  bool is_behind_next_bucket(int64_t bucket) const {
    if (bucket == none) return true;
    return static_cast<size_t>(bucket) < first_kept_ && static_cast<size_t>(bucket) + 1 < issued_;
  }

  // Nodes whose operands are there, in their order, collectives in buckets; behind the early nodes all of them.
  void emit_late(bool all) {
    if (early_meetings_ > 0) return;  // no stage waits for another's updates
    for (bool more = true; more;) {
      more = false;
      size_t kept = 0;
      bool may_meet = true;
      for (NodeId id : late_) {
        if (!is_ready(id, all) || (meets_stage(id) && !may_meet)) {
          may_meet &= !meets_stage(id);
          late_[kept++] = id;
          continue;
        }
        more = true;
        if (is_collective(id))
          add_to_bucket(id);
        else
          emit(id);
      }
      late_.resize(kept);
      if (all && !more && !open_bucket_.members.empty()) more = true, close_bucket();
    }
  }

  void add_to_bucket(NodeId id) {
    if (!open_bucket_.members.empty() && graph_.node(open_bucket_.members.front()).op != graph_.node(id).op)
      close_bucket();
    open_bucket_.members.push_back(id);
    open_bytes_ += graph_.type(graph_.node(id).results[0]).bytes();
    if (open_bytes_ >= min_bucket_bytes(draft_.device)) close_bucket();
  }

  void close_bucket() {
    issue(open_bucket_);
    open_bucket_.members.clear();
    open_bytes_ = 0;
  }

  bool is_ready(NodeId id, bool all) const {
    for (ValueId operand : graph_.node(id).operands) {
      const NodeId producer = operand == ValueId::None ? NodeId::None : graph_.value(operand).producer;
      if (producer == NodeId::None) continue;
      if (!emitted_[index_of(producer)] || (!all && !is_through(producer))) return false;
    }
    if (!all && !is_behind_next_bucket(last_bucket_read(id))) return false;
    const ValueId state = written_by_[index_of(id)];
    return state == ValueId::None || llvm::all_of(readers_of(graph_, state), [&](NodeId reader) {
             return reader == id || emitted_[index_of(reader)];
           });
  }

  // Collectives are issued as early, and waited for as late, as saves time in this order.
  int64_t set_intervals() {
    const RematProblem problem = graph_remat_problem(graph_, writers_, draft_.device, *draft_.catalog).problem;
    function_.copies =
        issue_copies(graph_, overlap_levels(problem, std::numeric_limits<int64_t>::max()).back().intervals);
    const auto beside = static_cast<int64_t>(function_.copies.size());
    llvm::append_range(function_.copies, transfers_in_flight(graph_, writers_));
    return beside;
  }

  static constexpr int64_t none = -1;

  PlanDraft& draft_;
  size_t index_;
  Graph& graph_;
  FunctionDraft& function_;
  const std::vector<NodeId>& writers_;
  std::vector<std::pair<size_t, NodeId>> collectives_;  // with the place in early_ of what they read last
  std::vector<NodeId> early_, late_, order_;
  int64_t early_meetings_ = 0;  // of stages: those in early_ that are still to come
  std::vector<Bucket> buckets_;
  size_t issued_ = 0;               // of buckets_
  size_t first_kept_ = 0;           // of buckets_: from here on updates are kept for the time of the last one
  std::vector<int64_t> bucket_of_;  // by node: of a sum that is issued early
  Bucket open_bucket_;              // of collectives that read others' results
  int64_t open_bytes_ = 0;
  std::vector<ValueId> written_by_;  // by node: the state that it writes
  std::vector<bool> emitted_;        // by node
  std::vector<int64_t> place_;       // by node: of a collective that is issued early, in the clock
  EngineClock clock_;
};

Result<bool> run(PlanDraft& draft, size_t function, PassContext& context) {
  const Graph& graph = draft.program.functions[function];
  const std::vector<NodeId> before = graph.order();
  const int64_t beside = Overlapper(draft, function).run();
  if (beside > 0) context.count("beside computing", beside);
  return beside > 0 || graph.order() != before;
}

}  // namespace

constinit const PassInfo pass_overlap_collectives{
    .name = "overlap-collectives",
    .summary = "issues the collectives of gradients early, in buckets, and lets their readers wait",
    .plan = run,
};

}  // namespace plimsoll
