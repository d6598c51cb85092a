#include "passes/remat/remat_search.h"

#include <algorithm>
#include <cmath>

// Simulated annealing over sets of repeats and fetches. The energy is added time plus a price for every byte above the limit;
// the price follows the search, up while it is above the limit and down while it is within. It cools several
// times, each time from the best found.

namespace plimsoll::fit {
namespace {

constexpr int coolings = 6;
constexpr double coldest = 1e-3;         // of the hottest temperature
constexpr double price_change = 1.003;   // every `adapt_every` changes
constexpr int64_t adapt_every = 64;
constexpr int64_t least_steps = 16;       // a change counts for, even when it comes to nothing
constexpr double rounding = 1e-12;       // between sums of the same costs in another order

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull) {}
  uint64_t bits() {  // Vigna's splitmix64 (2015)
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  int32_t below(int32_t n) { return static_cast<int32_t>((bits() >> 32) * static_cast<uint64_t>(n) >> 32); }
  double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  bool coin() { return below(2) == 0; }

 private:
  uint64_t state_;
};

class Annealer {
 public:
  Annealer(Sequence& sequence, int64_t limit, const AnnealOptions& options)
      : s_(sequence), limit_(limit), options_(options), random_(options.seed), excess_(s_.memory().excess(limit)) {
    s_.forget_journal();
    keep_best();
    hottest_ = options.heat * mean_cost();
    // As dear as what the limit needed so far.
    double shed = static_cast<double>(Sequence(s_.problem()).memory().excess(limit) - excess_);
    price_ = std::max(4 * s_.added_us(), hottest_) / std::max(shed, 1.0);
  }

  void run() {
    int64_t start = s_.memory().steps();
    double last_phase = 0;
    for (int64_t changes = 0; best_excess_ > 0 || best_us_ > options_.enough_us * (1 + rounding); ++changes) {
      double done = static_cast<double>(s_.memory().steps() - start + changes * least_steps) / static_cast<double>(options_.steps);
      if (done >= 1) break;
      if (changes % adapt_every == 0) {
        double phase = done * coolings - std::floor(done * coolings);
        if (phase < last_phase) return_to_best();
        last_phase = phase;
        temperature_ = hottest_ * std::pow(coldest, phase);
        price_ *= excess_ > 0 ? price_change : 1 / price_change;
      }
      try_change();
    }
    return_to_best();
  }

 private:
  // Of a repeat or fetch, as if nothing hid; of an op where there are none yet.
  double mean_cost() const {
    double sum = s_.loads().placed_us();
    size_t count = s_.extras().size();
    if (count == 0)
      for (const RecomputeOp& op : s_.problem().ops) sum += op.cost_us;
    return std::max(sum, 1e-9) / static_cast<double>(count == 0 ? s_.problem().ops.size() : count);
  }

  void keep_best() {
    best_ = s_.extras().vec();
    best_us_ = s_.added_us();
    best_excess_ = excess_;
  }

  void return_to_best() {
    set_extras(s_, best_);
    excess_ = best_excess_;
  }

  void try_change() {
    double added = s_.added_us();
    if (!change()) return s_.rewind(0);
    int64_t excess = s_.memory().excess(limit_);
    double delta = s_.added_us() - added + price_ * static_cast<double>(excess - excess_);
    if (delta > 0 && random_.unit() >= std::exp(-delta / temperature_)) return s_.rewind(0);
    excess_ = excess;
    s_.forget_journal();
    if (excess_ < best_excess_ || (excess_ == best_excess_ && s_.added_us() < best_us_ * (1 - rounding))) keep_best();
  }

  // One random change; false when it came to nothing, perhaps halfway.
  bool change() {
    double pick = random_.unit();
    if (excess_ > 0 && pick < 0.4) return insert_at(above_limit());
    if (s_.extras().empty() || pick < 0.15) return random_.below(8) == 0 ? insert_anything() : insert_at(anywhere());
    if (pick < 0.4) return erase_one();
    if (!s_.problem().offloads.empty() && pick < 0.5) return exchange_one();
    if (pick < 0.65) return shift_one();
    if (pick < 0.7) return shift_stage();
    return swap_two();
  }

  Moment anywhere() {
    int32_t stage = random_.below(s_.problem().op_count());
    return {stage, stage};
  }

  Moment above_limit() {
    Moment found = s_.memory().peak_moment();
    int32_t skip = random_.below(16) - 4;
    if (skip < 0) return found;
    s_.memory().each_above(limit_, [&](Moment at, int64_t) {
      found = at;
      return skip-- > 0;
    });
    return found;
  }

  Moment any_extra() { return s_.extras()[static_cast<size_t>(random_.below(static_cast<int32_t>(s_.extras().size())))]; }

  // Ends the wait of a random value at `peak`.
  bool insert_at(Moment peak) {
    static constexpr int32_t most_ops[] = {1, 1, 2, 3, 8, 20};
    constexpr int tries = 24;
    if (peak.stage == 0) return false;
    for (int i = 0; i < tries; ++i) {
      int32_t maker = random_.below(s_.maker_count(peak.stage));
      llvm::SmallVector<Moment, 2> ends = ends_of_wait(s_, s_.maker(maker, peak.stage), peak);
      if (ends.empty()) continue;
      s_.insert_with_ancestors(ends.size() == 1 ? ends[0] : ends[static_cast<size_t>(random_.below(2))], most_ops[random_.below(6)]);
      return true;
    }
    return false;
  }

  bool insert_anything() {
    int32_t stage = 1 + random_.below(s_.problem().op_count());
    Moment at = s_.moment_before(stage, s_.maker(random_.below(s_.maker_count(stage)), stage));
    if (!s_.may_insert(at)) return false;
    s_.insert_with_ancestors(at, 1 + random_.below(3));
    return true;
  }

  bool erase_one() {
    Moment at = any_extra();
    if (s_.is_store(at.op)) return false;
    if (random_.coin())
      s_.erase(at);
    else
      s_.erase_with_unread(at);
    return true;
  }

  bool shift_one() {
    Moment at = any_extra();
    int32_t reach = random_.below(3) == 0 ? s_.problem().op_count() / 4 + 1 : 4;
    int32_t by = 1 + random_.below(reach);
    Moment to{at.stage + (random_.coin() ? by : -by), at.op};
    if (to.stage > s_.problem().op_count()) return false;
    if (s_.is_copy(at.op)) return shift_copy(at, to);
    if (!s_.may_insert(to)) return false;
    s_.erase(at);
    s_.insert(to);
    return true;
  }

  // A copy keeps its other end.
  bool shift_copy(Moment at, Moment to) {
    s_.erase_alone(at);
    if (!s_.may_insert(to)) return false;
    s_.insert_alone(to);
    return true;
  }

  // A fetch for a repeat, or a repeat for a fetch.
  bool exchange_one() {
    Moment at = any_extra();
    if (s_.is_store(at.op)) return false;
    int32_t value = s_.op(at.op).writes[0];
    Moment use = s_.next_use(value, at);
    int32_t other = s_.is_fetch(at.op) ? s_.producer(value) : s_.fetch_of(value);
    if (use == s_.none() || other < 0) return false;
    s_.erase_with_unread(at);
    Moment instead = s_.is_fetch(other) && random_.coin() ? s_.unhurried(other, use.stage, s_.last_use(value, at)) : s_.moment_before(use.stage, other);
    if (!s_.may_insert(instead)) return false;
    s_.insert_with_ancestors(instead, 1 + random_.below(3));
    return true;
  }

  // All repeats and fetches before one op, to before another.
  bool shift_stage() {
    int32_t from = s_.stage_after(any_extra()), by = 1 + random_.below(6);
    int32_t to = random_.coin() ? from + by : from - by;
    if (to <= 0 || to > s_.problem().op_count()) return false;
    llvm::SmallVector<Moment, 16> group;
    for (Moment at : s_.extras())
      if (s_.stage_after(at) == from) group.push_back(at);
    for (Moment at : group) s_.erase_alone(at);
    for (Moment at : group) {
      Moment moved = s_.moment_before(to, at.op);
      if (s_.may_insert(moved))
        s_.insert_alone(moved);
      else if (s_.is_copy(at.op))
        return false;  // the other end would be left over
    }
    return true;
  }

  bool swap_two() {
    erase_one();
    if (s_.memory().peak() <= limit_) return insert_at(anywhere());
    return insert_at(random_.below(4) > 0 ? s_.memory().peak_moment() : above_limit());
  }

  Sequence& s_;
  int64_t limit_;
  AnnealOptions options_;
  Random random_;
  int64_t excess_;
  std::vector<Moment> best_;
  double best_us_ = 0;
  int64_t best_excess_ = 0;
  double hottest_ = 0, temperature_ = 0, price_ = 0;
};

}  // namespace

void anneal(Sequence& sequence, int64_t limit, const AnnealOptions& options) {
  if (sequence.memory().peak() > limit || !sequence.extras().empty()) Annealer(sequence, limit, options).run();
}

}  // namespace plimsoll::fit
