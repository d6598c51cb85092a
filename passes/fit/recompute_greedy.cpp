#include "passes/fit/recompute_search.h"

#include <algorithm>

// At the peak, each value that is only waiting there can be dropped and made again right before its next use,
// together with what that needs and is gone by then, or wait on the host. The change that removes most excess for its time is made.
// Candidates are looked at in the order of what they could be worth at best, up to where that is less than the best was worth.

namespace plimsoll::fit {
namespace {

constexpr int32_t ancestor_limits[] = {1, 3, 8, 20, 60};
constexpr int32_t copy_limits[] = {1, 2};

constexpr double least_us = 1e-3;  // that a change is taken to add
constexpr double rounding = 1e-9;

struct Candidate {
  Moment at;
  double most_score = 0;
  int32_t index = -1;
  int32_t most_ops = 0;  // with ancestors; of a copy 1, or 2 where compute is to wait for the store
  double score = 0;
};

// The moments above a limit, and how far.
class Above {
 public:
  Above(const MemoryProfile& memory, int64_t limit) {
    memory.each_above(limit, [&](Moment at, int64_t live) {
      moments_.push_back(at);
      sums_.push_back(sums_.back() + live - limit);
      return true;
    });
  }

  // By how much less is above the limit at most without `bytes` from `first` to `last`.
  double without(int64_t bytes, Moment first, Moment last) const {
    auto begin = std::lower_bound(moments_.begin(), moments_.end(), first), end = std::upper_bound(begin, moments_.end(), last);
    int64_t sum = sums_[static_cast<size_t>(end - moments_.begin())] - sums_[static_cast<size_t>(begin - moments_.begin())];
    return static_cast<double>(std::min(sum, bytes * (end - begin)));
  }

 private:
  std::vector<Moment> moments_;
  std::vector<int64_t> sums_{0};  // up to each, and in all
};

// What would end the wait of a value at `peak`, or make it shorter.
std::vector<Moment> candidates(const Sequence& sequence, Moment peak) {
  std::vector<Moment> result;
  for (int32_t i = 0; i < sequence.maker_count(peak.stage); ++i)
    for (Moment at : ends_of_wait(sequence, sequence.maker(i, peak.stage), peak)) result.push_back(at);
  if (sequence.is_all_compute()) return result;
  for (Moment at : sequence.extras())
    if (sequence.is_store(at.op) && at >= peak) result.push_back(at);
  return result;
}

// What it removes at most, for the time it adds at least.
double most_score(const Sequence& sequence, const Above& above, Moment at, Moment peak) {
  const RecomputeOp& op = sequence.op(at.op);
  auto without = [&](int32_t v, Moment made) { return above.without(sequence.problem().value_bytes[static_cast<size_t>(v)], made, at); };
  if (sequence.is_store(at.op)) {
    int32_t maker = sequence.producer(op.reads[0]);
    return without(op.reads[0], {maker, maker}) / least_us;
  }
  double gain = 0;
  for (int32_t v : op.writes) gain += without(v, sequence.made(v, peak));
  ChannelLoads loads = sequence.loads();
  loads.add(op.channel, op.cost_us);
  double hidden_us = loads.hidden_price_us() - sequence.loads().hidden_price_us();
  return gain / (std::max(loads.added_us() - sequence.added_us(), hidden_us) + least_us);
}

// By what they could score, best first.
std::vector<Candidate> ranked_candidates(const Sequence& sequence, Moment peak, int64_t limit) {
  const Above above(sequence.memory(), limit);
  std::vector<Candidate> result;
  for (Moment at : candidates(sequence, peak))
    result.push_back({at, most_score(sequence, above, at, peak), static_cast<int32_t>(result.size())});
  std::stable_sort(result.begin(), result.end(), [](const Candidate& a, const Candidate& b) { return a.most_score > b.most_score; });
  return result;
}

bool is_better(const Candidate& a, const Candidate& b) { return a.score != b.score ? a.score > b.score : a.score > 0 && a.index < b.index; }

void apply(Sequence& sequence, const Candidate& candidate) {
  if (sequence.is_store(candidate.at.op)) return sequence.hurry(candidate.at.op);
  sequence.insert_with_ancestors(candidate.at, candidate.most_ops);
  if (sequence.is_fetch(candidate.at.op) && candidate.most_ops > 1) sequence.hurry(sequence.store_of(candidate.at.op));
}

// With few of its ancestors or with many: what is better than `best` takes its place.
void try_candidate(Sequence& sequence, int64_t limit, Candidate candidate, Candidate& best) {
  const double excess = static_cast<double>(sequence.memory().excess(limit)), added = sequence.added_us();
  const double hidden = sequence.loads().hidden_price_us();
  size_t last_count = 0;
  for (int32_t most : sequence.is_copy(candidate.at.op) ? llvm::ArrayRef<int32_t>(copy_limits) : llvm::ArrayRef<int32_t>(ancestor_limits)) {
    size_t mark = sequence.mark();
    candidate.most_ops = most;
    apply(sequence, candidate);
    size_t count = sequence.mark() - mark;
    double gain = excess - static_cast<double>(sequence.memory().excess(limit));
    const ChannelLoads& loads = sequence.loads();
    const double least_more_us = std::max(loads.hidden_price_us() - hidden, loads.added_us() - added);
    if (sequence.is_all_compute() || gain >= best.score * (least_more_us + least_us)) {  // else it cannot score more
      candidate.score = gain / (sequence.added_us() - added + least_us);
      if (is_better(candidate, best)) best = candidate;
    }
    sequence.rewind(mark);
    if (count == last_count) break;
    last_count = count;
  }
}

Candidate best_candidate(Sequence& sequence, int64_t limit) {
  Candidate best;
  for (const Candidate& candidate : ranked_candidates(sequence, sequence.memory().peak_moment(), limit)) {
    if (candidate.most_score * (1 + rounding) < best.score) break;
    try_candidate(sequence, limit, candidate, best);
  }
  return best;
}

}  // namespace

llvm::SmallVector<Moment, 2> ends_of_wait(const Sequence& sequence, int32_t id, Moment peak) {
  Moment use = sequence.none();
  for (int32_t v : sequence.op(id).writes)
    if (sequence.is_alive(v, peak) && !sequence.touches(peak.op, v)) use = std::min(use, sequence.next_use(v, peak));
  if (use == sequence.none() || use.stage <= peak.stage || sequence.is_store(use.op)) return {};
  llvm::SmallVector<Moment, 2> result;
  auto add = [&](Moment at) {
    if (at > peak && sequence.may_insert(at) && !llvm::is_contained(result, at)) result.push_back(at);
  };
  add(sequence.moment_before(use.stage, id));
  if (sequence.is_fetch(id)) add(sequence.unhurried(id, use.stage, peak));
  return result;
}

bool lower_peak(Sequence& sequence, int64_t limit) {
  sequence.forget_journal();
  while (sequence.memory().peak() > limit) {
    Candidate best = best_candidate(sequence, limit);
    if (best.score <= 0) return false;
    apply(sequence, best);
    sequence.forget_journal();  // a candidate is taken back to where the time is known
  }
  return true;
}

void drop_unneeded(Sequence& sequence, int64_t limit) {
  std::vector<Moment> extras = sequence.extras().vec();
  std::sort(extras.begin(), extras.end(), [&](Moment a, Moment b) {
    double cost_a = sequence.op(a.op).cost_us, cost_b = sequence.op(b.op).cost_us;
    return cost_a != cost_b ? cost_a > cost_b : a < b;
  });
  for (Moment at : extras) {
    if (!sequence.has(at) || sequence.is_store(at.op)) continue;
    size_t mark = sequence.mark();
    sequence.erase_with_unread(at);
    if (sequence.memory().peak() > limit) sequence.rewind(mark);
  }
}

void set_extras(Sequence& sequence, llvm::ArrayRef<Moment> extras) {
  std::vector<Moment> wanted = extras.vec(), present = sequence.extras().vec();
  std::sort(wanted.begin(), wanted.end());
  std::sort(present.begin(), present.end());
  std::vector<Moment> change;
  std::set_difference(present.begin(), present.end(), wanted.begin(), wanted.end(), std::back_inserter(change));
  for (Moment at : change) sequence.erase_alone(at);
  change.clear();
  std::set_difference(wanted.begin(), wanted.end(), present.begin(), present.end(), std::back_inserter(change));
  for (Moment at : change) sequence.insert_alone(at);
  sequence.forget_journal();
}

}  // namespace plimsoll::fit
