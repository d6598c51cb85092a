#include "passes/fit/recompute_search.h"

#include <algorithm>

// At the peak, each value that is only waiting there can be dropped and made again right before its next use,
// together with what that needs and is gone by then, or wait on the host. The change that removes most excess for its time is made.

namespace plimsoll::fit {
namespace {

constexpr int32_t ancestor_limits[] = {1, 3, 8, 20, 60};
constexpr int32_t copy_limits[] = {1, 2};

struct Candidate {
  Moment at;
  int32_t most_ops = 0;  // with ancestors; of a copy 1, or 2 where compute is to wait for the store
  double score = 0;
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

void apply(Sequence& sequence, const Candidate& candidate) {
  if (sequence.is_store(candidate.at.op)) return sequence.hurry(candidate.at.op);
  sequence.insert_with_ancestors(candidate.at, candidate.most_ops);
  if (sequence.is_fetch(candidate.at.op) && candidate.most_ops > 1) sequence.hurry(sequence.store_of(candidate.at.op));
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
  while (sequence.memory().peak() > limit) {
    Candidate best;
    double excess = static_cast<double>(sequence.memory().excess(limit)), added = sequence.added_us();
    const double hidden = sequence.loads().hidden_price_us();
    for (Moment at : candidates(sequence, sequence.memory().peak_moment())) {
      size_t last_count = 0;
      for (int32_t most : sequence.is_copy(at.op) ? llvm::ArrayRef<int32_t>(copy_limits) : llvm::ArrayRef<int32_t>(ancestor_limits)) {
        size_t mark = sequence.mark();
        apply(sequence, {at, most});
        size_t count = sequence.mark() - mark;
        double gain = excess - static_cast<double>(sequence.memory().excess(limit));
        if (sequence.is_all_compute() || gain > best.score * (sequence.loads().hidden_price_us() - hidden + 1e-3)) {  // else it cannot score more
          double score = gain / (sequence.added_us() - added + 1e-3);
          if (score > best.score) best = {at, most, score};
        }
        sequence.rewind(mark);
        if (count == last_count) break;
        last_count = count;
      }
    }
    if (best.score <= 0) return false;
    apply(sequence, best);
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
