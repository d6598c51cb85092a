#include "passes/fit/recompute_search.h"

#include <algorithm>

// At the peak, each value that is only waiting there can be dropped and made again right before its next use,
// together with what that needs and is gone by then, or wait on the host. The change that removes most excess for its time is made.

namespace plimsoll::fit {
namespace {

constexpr int32_t ancestor_limits[] = {1, 3, 8, 20, 60};

struct Candidate {
  Moment at;
  int32_t most_ops = 0;
  double score = 0;
};

// Repeats and fetches that would end the wait of a value at `peak`.
std::vector<Moment> ends_of_waits(const Sequence& sequence, Moment peak) {
  std::vector<Moment> result;
  for (int32_t i = 0; i < sequence.maker_count(peak.stage); ++i)
    if (Moment at = end_of_wait(sequence, sequence.maker(i, peak.stage), peak); at != sequence.none()) result.push_back(at);
  return result;
}

}  // namespace

Moment end_of_wait(const Sequence& sequence, int32_t id, Moment peak) {
  Moment use = sequence.none();
  for (int32_t v : sequence.op(id).writes)
    if (sequence.is_alive(v, peak) && !sequence.touches(peak.op, v)) use = std::min(use, sequence.next_use(v, peak));
  if (use == sequence.none() || use.stage <= peak.stage) return sequence.none();
  Moment at = sequence.moment_before(use.stage, id);
  return at > peak && sequence.may_insert(at) ? at : sequence.none();
}

bool lower_peak(Sequence& sequence, int64_t limit) {
  while (sequence.memory().peak() > limit) {
    Candidate best;
    double excess = static_cast<double>(sequence.memory().excess(limit)), added = sequence.added_us();
    for (Moment at : ends_of_waits(sequence, sequence.memory().peak_moment())) {
      size_t last_count = 0;
      for (int32_t most : ancestor_limits) {
        size_t mark = sequence.mark();
        sequence.insert_with_ancestors(at, most);
        size_t count = sequence.mark() - mark;
        double gain = excess - static_cast<double>(sequence.memory().excess(limit));
        double score = gain / (sequence.added_us() - added + 1e-3);
        if (score > best.score) best = {at, most, score};
        sequence.rewind(mark);
        if (count == last_count) break;
        last_count = count;
      }
    }
    if (best.score <= 0) return false;
    sequence.insert_with_ancestors(best.at, best.most_ops);
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
    if (!sequence.has(at)) continue;
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
  for (Moment at : change) sequence.erase(at);
  change.clear();
  std::set_difference(wanted.begin(), wanted.end(), present.begin(), present.end(), std::back_inserter(change));
  for (Moment at : change) sequence.insert(at);
  sequence.forget_journal();
}

}  // namespace plimsoll::fit
