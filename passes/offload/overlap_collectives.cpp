#include "ir/awaited.h"
#include "ir/machine/engine_clock.h"
#include "passes/analysis/aliasing.h"
#include "passes/analysis/cost_model.h"
#include "passes/analysis/launches.h"
#include "passes/analysis/plan_draft.h"
#include "passes/analysis/transfer_waits.h"
#include "passes/offload/collective_buckets.h"
#include "passes/offload/offload_rewrite.h"
#include "passes/offload/overlap.h"
#include "passes/remat/remat_problem.h"

#include <algorithm>
#include <limits>

// Lets collectives run beside computing. What reads no sum of gradients keeps its order; each gradient's sum is issued
// with its bucket, and what reads it waits in a queue until the sum is predicted to have been through for a while and
// the next bucket is issued: ranks are never quite in step. Nothing is left to compute beside the last bucket
// but updates: those of the buckets before it are kept for that. Sums of what only inputs tell, such as the number of
// labels, come first, where no rank waits for another's layers. Then every collective gets the interval in which it
// runs.
//
// Why it is right: no node comes before what it reads, and the writer of a state not before the state's other readers.
// What stages of a pipeline do together keeps its order.

namespace plimsoll {
namespace {

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
    if (gather_for_readers()) split_order();
    if (keep_for_exchanges()) split_order();
    buckets_ = choose_buckets(graph_, collectives_, early_, draft_.device, [&](NodeId id) { return cost_us(id); });
    for (NodeId id : early_) early_us_ += cost_us(id);
    keep_for_last_buckets();
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

  // Moves gathers of states behind all that does not read them: they are issued in the order in which they are needed,
  // as early as there is room. Returns whether there are any.
  bool gather_for_readers() {
    std::vector<NodeId> gather_of(graph_.value_count(), NodeId::None), order;  // by value: of what it makes, or reads
    std::vector<bool> waits(graph_.node_slots(), false);
    bool any = false;
    const auto emit_before = [&](ValueId value) {
      if (value == ValueId::None) return;
      const NodeId id = gather_of[index_of(value)];
      if (id == NodeId::None || !waits[index_of(id)]) return;
      waits[index_of(id)] = false;
      order.push_back(id);
    };
    for (NodeId id : graph_.order()) {
      const Node& node = graph_.node(id);
      const ValueId state = node.operands.size() == 1 ? node.operands[0] : ValueId::None;
      if (is_collective(id) && state != ValueId::None && graph_.find_state(state) &&
          gather_of[index_of(state)] == NodeId::None) {
        any = waits[index_of(id)] = true;
        gather_of[index_of(state)] = id;
        for (ValueId result : node.results) gather_of[index_of(result)] = id;
        continue;
      }
      for (ValueId operand : node.operands)
        if (operand != ValueId::None && !graph_.find_state(operand)) emit_before(operand);
      emit_before(written_by_[index_of(id)]);
      order.push_back(id);
    }
    for (NodeId id : graph_.order())
      if (waits[index_of(id)]) order.push_back(id);
    if (any) graph_.reorder(order);
    return any;
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

  // What backward makes for sums alone, as gradients of weights, can wait for a collective whose result backward reads
  // soon, as the gather of what ranks looked up: the last of it ahead of such a collective runs beside it. Returns
  // whether anything waits.
  bool keep_for_exchanges() {
    std::vector<bool> is_sum(graph_.node_slots(), false);
    for (const auto& [ready, id] : collectives_) is_sum[index_of(id)] = true;
    bool any = false;
    for (size_t at = 0; at < early_.size(); ++at) {
      if (!is_collective(early_[at])) continue;
      std::vector<size_t> kept = kept_for(at, is_sum);
      if (kept.empty()) continue;
      any = true;
      std::reverse(kept.begin(), kept.end());
      std::vector<NodeId> moved;
      for (size_t place : kept) moved.push_back(early_[place]);
      for (size_t i = 0; i < kept.size(); ++i) early_.erase(early_.begin() + static_cast<ptrdiff_t>(kept[i] - i));
      early_.insert(early_.begin() + static_cast<ptrdiff_t>(at + 1 - kept.size()), moved.begin(), moved.end());
    }
    if (!any) return false;
    std::vector<bool> is_early(graph_.node_slots(), false);
    for (NodeId id : early_) is_early[index_of(id)] = true;
    std::vector<NodeId> order = early_;
    for (NodeId id : graph_.order())
      if (!is_early[index_of(id)]) order.push_back(id);
    graph_.reorder(order);
    return true;
  }

  // Places ahead of the collective at that place, the last ones first, of what can run beside it, until that takes as
  // long as it does.
  std::vector<size_t> kept_for(size_t at, const std::vector<bool>& is_sum) const {
    double missing_us = cost_us(early_[at]) / draft_.device.collective_shares().link;
    std::vector<bool> behind(graph_.value_count(), false);
    for (ValueId result : graph_.node(early_[at]).results) behind[index_of(result)] = true;
    for (size_t i = at + 1; i < early_.size() && missing_us > 0; ++i) {
      const Node& node = graph_.node(early_[i]);
      const bool reads =
          llvm::any_of(node.operands, [&](ValueId each) { return each != ValueId::None && behind[index_of(each)]; });
      if (reads && is_instruction(node)) break;
      for (ValueId result : node.results) behind[index_of(result)] = reads;
      if (!is_collective(early_[i])) missing_us -= cost_us(early_[i]);
    }
    std::vector<size_t> kept;
    if (missing_us < min_stall_us) return kept;
    std::vector<bool> waits(graph_.node_slots(), false);
    for (size_t i = at; i-- > 0 && missing_us > 0;) {
      const NodeId id = early_[i];
      const Node& node = graph_.node(id);
      if (is_collective(id)) break;
      const auto may_wait = [&](NodeId user) { return is_sum[index_of(user)] || waits[index_of(user)]; };
      const auto is_for_sums = [&](ValueId each) {
        const auto& users = graph_.value(each).users;
        return !users.empty() && llvm::all_of(users, may_wait);
      };
      if (meets_stage(id) || node.results.empty() || !llvm::all_of(node.results, is_for_sums)) continue;
      waits[index_of(id)] = true;
      kept.push_back(i);
      missing_us -= cost_us(id);
    }
    return kept;
  }

  // Where the last buckets are through behind what is computed ahead of updates, updates of those before them wait
  // until these are issued, as many of them as their sums take then. Where updates are gathered or summed themselves,
  // the link has no time for them then.
  void keep_for_last_buckets() {
    bucket_of_.assign(graph_.node_slots(), none);
    for (size_t b = 0; b < buckets_.size(); ++b)
      for (NodeId id : buckets_[b].members) bucket_of_[index_of(id)] = static_cast<int64_t>(b);
    auto [first, left_us] = buckets_behind(buckets_, early_, [&](NodeId id) { return cost_us(id); });
    first_kept_ = first;
    if (llvm::any_of(late_, [&](NodeId id) { return is_collective(id); })) return;
    std::vector<double> update_us(buckets_.size(), 0);  // of what reads the bucket's sums
    for (NodeId id : late_) {
      const int64_t bucket = last_bucket_read(id);
      if (bucket != none) update_us[static_cast<size_t>(bucket)] += cost_us(id);
    }
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

  // Those whose place that is, once the early node there is through.
  void issue_buckets(size_t place) {
    for (; issued_ < buckets_.size() && buckets_[issued_].issue <= place; ++issued_) issue(buckets_[issued_].members);
  }

  // One launch.
  void issue(llvm::ArrayRef<NodeId> members) {
    for (NodeId id : members) {
      place_[index_of(id)] = static_cast<int64_t>(clock_.issue_collective(cost_us(id), id != members.front()));
      add(id);
    }
  }

  // For long enough.
  bool is_through(NodeId id) {
    if (place_[index_of(id)] == none) return true;
    const auto place = static_cast<size_t>(place_[index_of(id)]);
    return clock_.is_through(place) &&
           clock_.launch_finish_us(Engine::Ranks, place) <= clock_.now_us() - early_us_ / shares_out_of_step;
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
      std::vector<Likes> likes;
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
          add_to_likes(likes, id);
      }
      late_.resize(kept);
      emit(std::move(likes));
      if (all && !more && !open_bucket_.empty()) more = true, close_bucket();
    }
  }

  // Nodes of one kind that read sums of one bucket: the runtime launches updates as one where they are neighbours.
  struct Likes {
    int64_t bucket;
    std::string kind;
    std::vector<NodeId> members;
  };

  void add_to_likes(std::vector<Likes>& likes, NodeId id) const {
    const int64_t bucket = last_bucket_read(id);
    const std::string kind = launch_kind(graph_, graph_.node(id));
    auto found = llvm::find_if(likes, [&](const Likes& each) { return each.bucket == bucket && each.kind == kind; });
    if (found == likes.end()) found = likes.insert(likes.end(), {bucket, kind, {}});
    found->members.push_back(id);
  }

  // Those whose sums are through first come first.
  void emit(std::vector<Likes> likes) {
    llvm::stable_sort(likes, [](const Likes& a, const Likes& b) { return a.bucket < b.bucket; });
    for (const Likes& each : likes)
      for (NodeId id : each.members) emit(id);
  }

  void add_to_bucket(NodeId id) {
    if (!open_bucket_.empty() && graph_.node(open_bucket_.front()).op != graph_.node(id).op) close_bucket();
    open_bucket_.push_back(id);
    open_bytes_ += graph_.type(graph_.node(id).results[0]).bytes();
    if (open_bytes_ >= min_bucket_bytes(draft_.device)) close_bucket();
  }

  void close_bucket() {
    issue(open_bucket_);
    open_bucket_.clear();
    open_bytes_ = 0;
  }

  bool is_ready(NodeId id, bool all) {
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
  static constexpr double min_stall_us = 50;  // worth another order

  PlanDraft& draft_;
  size_t index_;
  Graph& graph_;
  FunctionDraft& function_;
  const std::vector<NodeId>& writers_;
  std::vector<ReadyCollective> collectives_;  // by the places in early_ of what they read last
  std::vector<NodeId> early_, late_, order_;
  double early_us_ = 0;         // what early_ takes
  int64_t early_meetings_ = 0;  // of stages: those in early_ that are still to come
  std::vector<CollectiveBucket> buckets_;
  size_t issued_ = 0;                // of buckets_
  size_t first_kept_ = 0;            // of buckets_: from here on updates are kept for the time of the last ones
  std::vector<int64_t> bucket_of_;   // by node: of a sum that is issued early
  std::vector<NodeId> open_bucket_;  // of collectives that read others' results
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
