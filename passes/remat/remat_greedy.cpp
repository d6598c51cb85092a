#include "passes/remat/remat_search.h"

#include "llvm/ADT/DenseMap.h"

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
constexpr double most_rise = 1.5;  // of a score since it was last tried

struct Candidate {
  Moment at;
  double most_gain = 0, most_score = 0;
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

// What `at` removes at most.
double most_gain(const Sequence& sequence, const Above& above, Moment at, Moment peak) {
  const RecomputeOp& op = sequence.op(at.op);
  auto without = [&](int32_t v, Moment made) { return above.without(sequence.problem().value_bytes[static_cast<size_t>(v)], made, at); };
  if (sequence.is_store(at.op)) {
    int32_t maker = sequence.producer(op.reads[0]);
    return without(op.reads[0], {maker, maker});
  }
  double gain = 0;
  for (int32_t v : op.writes) gain += without(v, sequence.made(v, peak));
  return gain;
}

// What a sequence of these loads takes more at least than one that had `before`, which took `added_us`.
double least_added_us(const ChannelLoads& loads, const ChannelLoads& before, double added_us) {
  return std::max(loads.added_us() - added_us, loads.hidden_price_us() - before.hidden_price_us()) + least_us;
}

// What it removes at most, for the time it adds at least.
double most_score(const Sequence& sequence, Moment at, double most_gain) {
  if (sequence.is_store(at.op)) return most_gain / least_us;
  ChannelLoads loads = sequence.loads();
  loads.add(sequence.op(at.op).channel, sequence.op(at.op).cost_us);
  return most_gain / least_added_us(loads, sequence.loads(), sequence.added_us());
}

bool is_better(const Candidate& a, const Candidate& b) { return a.score != b.score ? a.score > b.score : a.score > 0 && a.index < b.index; }

void apply(Sequence& sequence, const Candidate& candidate, llvm::function_ref<bool()> is_worth_it = [] { return true; }) {
  if (sequence.is_store(candidate.at.op)) return sequence.hurry(candidate.at.op);
  if (!sequence.insert_with_ancestors(candidate.at, candidate.most_ops, is_worth_it)) return;
  if (sequence.is_fetch(candidate.at.op) && candidate.most_ops > 1) sequence.hurry(sequence.store_of(candidate.at.op));
}

// Down to one limit. Scores fall as the excess does, nearly always, so what a candidate scored when it was last tried bounds what it can
// score now, and few are promising after a change (Minoux 1978).
class Descent {
 public:
  Descent(Sequence& sequence, int64_t limit, Tried tried) : sequence_(sequence), limit_(limit), tried_(tried) {}

  bool run() {
    sequence_.forget_journal();
    while (sequence_.memory().peak() > limit_) {
      Candidate best = best_candidate();
      if (best.score <= 0 && !last_scores_.empty()) {
        last_scores_.clear();
        best = best_candidate();
      }
      if (best.score <= 0) return false;
      apply(sequence_, best);
      sequence_.forget_journal();  // a candidate is taken back to where the time is known
    }
    return true;
  }

 private:
  // By what they could score, best first.
  std::vector<Candidate> ranked_candidates() const {
    const Above above(sequence_.memory(), limit_);
    const Moment peak = sequence_.memory().peak_moment();
    std::vector<Candidate> result;
    for (Moment at : candidates(sequence_, peak)) {
      const double gain = most_gain(sequence_, above, at, peak);
      double score = most_score(sequence_, at, gain);
      if (auto last = last_scores_.find({at.stage, at.op}); last != last_scores_.end()) score = std::min(score, most_rise * last->second);
      result.push_back({at, gain, score, static_cast<int32_t>(result.size())});
    }
    std::stable_sort(result.begin(), result.end(), [](const Candidate& a, const Candidate& b) { return a.most_score > b.most_score; });
    return result;
  }

  Candidate best_candidate() {
    Candidate best;
    for (const Candidate& candidate : ranked_candidates()) {
      if (candidate.most_score * (1 + rounding) < best.score) break;
      const double scores = try_candidate(candidate, best);
      if (tried_ == Tried::Promising) last_scores_[{candidate.at.stage, candidate.at.op}] = scores;
    }
    return best;
  }

  // With few of its ancestors or with many: what is better than `best` takes its place. Gives what it scores at most.
  double try_candidate(Candidate candidate, Candidate& best) {
    const double excess = static_cast<double>(sequence_.memory().excess(limit_)), added = sequence_.added_us();
    const ChannelLoads loads = sequence_.loads();
    // As well as the best; more ancestors only add to what it costs.
    const auto may_score = [&](double gain) { return gain * (1 + rounding) >= best.score * least_added_us(sequence_.loads(), loads, added); };
    double most = 0;
    size_t last_count = 0;
    for (int32_t most_ops : sequence_.is_copy(candidate.at.op) ? llvm::ArrayRef<int32_t>(copy_limits) : llvm::ArrayRef<int32_t>(ancestor_limits)) {
      const size_t mark = sequence_.mark();
      candidate.most_ops = most_ops;
      apply(sequence_, candidate, [&] { return may_score(candidate.most_gain); });
      const size_t count = sequence_.mark() - mark;
      const bool given_up = !may_score(candidate.most_gain);
      const double gain = given_up ? 0 : excess - static_cast<double>(sequence_.memory().excess(limit_));
      if (!given_up && may_score(gain)) {
        candidate.score = gain / (sequence_.added_us() - added + least_us);
        most = std::max(most, candidate.score);
        if (is_better(candidate, best)) best = candidate;
      } else {
        most = std::max(most, best.score);
      }
      sequence_.rewind(mark);
      if (given_up || count == last_count) break;
      last_count = count;
    }
    return most;
  }

  Sequence& sequence_;
  int64_t limit_;
  Tried tried_;
  llvm::DenseMap<std::pair<int32_t, int32_t>, double> last_scores_;  // by moment
};

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

bool lower_peak(Sequence& sequence, int64_t limit, Tried tried) { return Descent(sequence, limit, tried).run(); }

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
