#include "ir/awaited.h"
#include "passes/analysis/aliasing.h"
#include "passes/analysis/cost_model.h"
#include "passes/analysis/plan_draft.h"

#include <algorithm>

// Lets collectives run beside computing. What reads no collective of the update phase keeps its order; each gradient's
// collective is issued as soon as its bucket is complete, and what reads its result waits in a queue until the
// collective is predicted to be through. Buckets are runs of neighbours, which the runtime launches as one.
//
// Why it is right: no node comes before what it reads, and the writer of a state not before the state's other readers.

namespace plimsoll {
namespace {

// A collective of this many bytes moves them at four fifths of the link's speed.
int64_t min_bucket_bytes(const DeviceDescription& device) {
  return static_cast<int64_t>(4 * device.collective_us * device.link_gb_per_s_used() * 1e3);
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
    // Stages of a pipeline keep the order of what they do together.
    if (llvm::any_of(graph_.order(), [&](NodeId id) { return is_awaited(graph_.node(id)); })) return 0;
    find_states_written();
    split_order();
    if (collectives_.empty()) return 0;
    make_buckets();
    finish_us_.assign(graph_.node_slots(), 0);
    emitted_.assign(graph_.node_slots(), false);
    size_t bucket = 0;
    for (size_t i = 0; i < early_.size(); ++i) {
      emit_late(false);
      emit(early_[i]);
      for (; bucket < buckets_.size() && buckets_[bucket].ready <= i; ++bucket) issue(buckets_[bucket]);
    }
    for (; bucket < buckets_.size(); ++bucket) issue(buckets_[bucket]);
    emit_late(true);
    graph_.reorder(order_);
    draft_.drop_layout(index_);
    return set_waits();
  }

 private:
  struct Bucket {
    size_t ready = 0;  // the place in early_ of the last node that one of its members reads
    std::vector<NodeId> members;
  };

  bool is_collective(NodeId id) const { return graph_.node(id).op->engine == Engine::Ranks; }

  // Collectives of the update phase that read none of each other, the nodes before them, and those behind them, to
  // which the writers of states that these read belong.
  void split_order() {
    std::vector<bool> behind(graph_.value_count(), false), read_behind(graph_.value_count(), false);
    std::vector<size_t> made_at(graph_.value_count(), 0);
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
      const bool first = !reads_late && node.phase == Phase::Update && is_collective(id);
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

  void find_states_written() {
    written_by_.assign(graph_.node_slots(), ValueId::None);
    for (size_t i = 0; i < writers_.size(); ++i) written_by_[index_of(writers_[i])] = graph_.updates[i].state;
  }

  double cost_us(NodeId id) const {
    const Node& node = graph_.node(id);
    if (!is_instruction(node)) return 0;
    return predicted_us(graph_, node, chosen_kernel(graph_, node, *draft_.catalog), draft_.device);
  }

  void emit(NodeId id) {
    now_us_ += cost_us(id);
    add(id, now_us_);
  }

  void add(NodeId id, double finish_us) {
    order_.push_back(id);
    emitted_[index_of(id)] = true;
    finish_us_[index_of(id)] = finish_us;
  }

  // One launch: its members are through together, later than alone, and computing beside it is slower.
  void issue(const Bucket& bucket) {
    double us = draft_.device.collective_us;
    for (NodeId id : bucket.members) us += cost_us(id) - draft_.device.collective_us;
    us /= draft_.device.collective_share;
    link_us_ = std::max(link_us_, now_us_) + us;
    now_us_ += draft_.device.collective_interference * us;
    for (NodeId id : bucket.members) add(id, link_us_);
  }

  // Nodes whose operands are there, in their order, collectives in buckets; behind the early nodes all of them.
  void emit_late(bool all) {
    for (bool more = true; more;) {
      more = false;
      size_t kept = 0;
      for (NodeId id : late_) {
        if (!is_ready(id, all)) {
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
      if (!emitted_[index_of(producer)] || (!all && finish_us_[index_of(producer)] > now_us_)) return false;
    }
    const ValueId state = written_by_[index_of(id)];
    return state == ValueId::None || llvm::all_of(readers_of(graph_, state), [&](NodeId reader) {
             return reader == id || emitted_[index_of(reader)];
           });
  }

  // A collective of the update phase is waited for before its first reader; nobody waits where that follows at once.
  int64_t set_waits() {
    std::vector<int32_t> position(graph_.node_slots(), -1);
    int32_t count = 0;
    for (NodeId id : order_)
      if (is_instruction(graph_.node(id))) position[index_of(id)] = count++;
    int64_t beside = 0;
    for (NodeId id : order_) {
      if (!is_collective(id) || graph_.node(id).phase != Phase::Update) continue;
      int32_t done = count;
      // Nobody writes what it reads before it is through.
      const ValueId source = root_of(graph_, graph_.node(id).operands[0]);
      for (NodeId writer : writers_)
        if (written_by_[index_of(writer)] == source) done = std::min(done, position[index_of(writer)]);
      for (NodeId reader : readers_of(graph_, graph_.node(id).results[0]))
        done = std::min(done, position[index_of(reader)]);
      if (done <= position[index_of(id)] + 1) continue;
      function_.copies.push_back({id, done});
      ++beside;
    }
    return beside;
  }

  PlanDraft& draft_;
  size_t index_;
  Graph& graph_;
  FunctionDraft& function_;
  const std::vector<NodeId>& writers_;
  std::vector<std::pair<size_t, NodeId>> collectives_;  // with the place in early_ of what they read last
  std::vector<NodeId> early_, late_, order_;
  std::vector<Bucket> buckets_;
  Bucket open_bucket_;  // of collectives that read others' results
  int64_t open_bytes_ = 0;
  std::vector<ValueId> written_by_;  // by node: the state that it writes
  std::vector<bool> emitted_;        // by node
  std::vector<double> finish_us_;    // by node
  double now_us_ = 0, link_us_ = 0;
};

Result<bool> run(PlanDraft& draft, size_t function, PassContext& context) {
  const int64_t beside = Overlapper(draft, function).run();
  if (beside == 0) return false;
  context.count("beside computing", beside);
  return true;
}

}  // namespace

constinit const PassInfo pass_overlap_collectives{
    .name = "overlap-collectives",
    .summary = "issues the collectives of gradients early, in buckets, and lets their readers wait",
    .plan = run,
};

}  // namespace plimsoll
