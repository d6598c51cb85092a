#include "ir/support/random.h"
#include "passes/remat/remat_search.h"

#include <algorithm>
#include <cmath>

// Simulated annealing over sets of remats and reloads. The energy is added time plus a price for every byte above the
// limit; the price follows the search, up while it is above the limit and down while it is within. It cools several
// times, each time from the best found.

namespace plimsoll::remat {
namespace {

constexpr int coolings = 6;
constexpr double coldest = 1e-3;        // share of the hottest temperature
constexpr int64_t adapt_every = 64;     // changes between two looks at temperature and price
constexpr double price_change = 1.003;  // factor per look
constexpr int64_t min_steps = 16;       // that a change counts for, even when nothing comes of it
constexpr double rounding = 1e-12;      // difference between sums of the same costs in another order

// How often each kind of change is drawn, as the upper ends of its stretch of [0, 1). The first holds above the limit
// alone, where what is missing is more remats and reloads; otherwise swaps, which keep the peak about where it is, are
// most of what finds cheaper plans.
constexpr double insert_above_limit = 0.4;
constexpr double insert_anywhere = 0.15, erase = 0.4, exchange = 0.5, shift = 0.65, shift_all = 0.7;

class Annealer {
 public:
  Annealer(RematSchedule& schedule, int64_t limit, int64_t steps, double enough_us)
      : s_(schedule), limit_(limit), steps_(steps), enough_us_(enough_us), excess_(s_.memory().excess(limit)) {
    s_.forget_journal();
    keep_best();
    hottest_ = mean_cost();
    // A byte above the limit is at first as dear as the bytes that were shed so far, a few times over so that the
    // search comes down to the limit.
    double shed = static_cast<double>(RematSchedule(s_.problem()).memory().excess(limit) - excess_);
    price_ = std::max(4 * s_.added_us(), hottest_) / std::max(shed, 1.0);
  }

  void run() {
    int64_t start = s_.memory().steps();
    double last_phase = 0;
    for (int64_t changes = 0; best_excess_ > 0 || best_us_ > enough_us_ * (1 + rounding); ++changes) {
      double done =
          static_cast<double>(s_.memory().steps() - start + changes * min_steps) / static_cast<double>(steps_);
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
  // The mean cost of a remat or copy, as if none of it hid; of an op where there are none yet.
  double mean_cost() const {
    double sum = s_.loads().placed_us();
    size_t count = s_.extras().size();
    if (count == 0)
      for (const RematOp& op : s_.problem().ops) sum += op.cost_us;
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

  // Makes one random change; false when it failed, perhaps halfway.
  bool change() {
    double pick = random_.unit();
    if (excess_ > 0 && pick < insert_above_limit) return insert_at(above_limit());
    if (s_.extras().empty() || pick < insert_anywhere)
      return random_.below(8) == 0 ? insert_anything() : insert_at(anywhere());
    if (pick < erase) return erase_one();
    if (!s_.problem().offloads.empty() && pick < exchange) return exchange_one();
    if (pick < shift) return shift_one();
    if (pick < shift_all) return shift_position();
    return swap_two();
  }

  ProgramPoint anywhere() {
    int32_t position = random_.below(s_.problem().op_count());
    return {position, position};
  }

  ProgramPoint above_limit() {
    ProgramPoint found = s_.memory().peak_point();
    int32_t skip = random_.below(16) - 4;
    if (skip < 0) return found;
    s_.memory().each_above(limit_, [&](ProgramPoint at, int64_t) {
      found = at;
      return skip-- > 0;
    });
    return found;
  }

  ProgramPoint any_extra() { return s_.extras()[random_.below(static_cast<int32_t>(s_.extras().size()))]; }

  // Has a random value that waits at `peak` made again behind it.
  bool insert_at(ProgramPoint peak) {
    static constexpr int32_t max_ops[] = {1, 1, 2, 3, 8, 20};
    constexpr int tries = 24;
    if (peak.position() == 0) return false;
    for (int i = 0; i < tries; ++i) {
      int32_t producer = random_.below(s_.producer_count(peak.position()));
      llvm::SmallVector<ProgramPoint, 2> ends = reload_points(s_, s_.producer_at(producer, peak.position()), peak);
      if (ends.empty()) continue;
      s_.insert_with_ancestors(ends.size() == 1 ? ends[0] : ends[random_.below(2)], max_ops[random_.below(6)]);
      return true;
    }
    return false;
  }

  bool insert_anything() {
    int32_t position = 1 + random_.below(s_.problem().op_count());
    ProgramPoint at = s_.point_before(position, s_.producer_at(random_.below(s_.producer_count(position)), position));
    if (!s_.may_insert(at)) return false;
    s_.insert_with_ancestors(at, 1 + random_.below(3));
    return true;
  }

  bool erase_one() {
    ProgramPoint at = any_extra();
    if (s_.is_offload(at.op())) return false;
    if (random_.coin())
      s_.erase(at);
    else
      s_.erase_with_unread(at);
    return true;
  }

  bool shift_one() {
    ProgramPoint at = any_extra();
    int32_t reach = random_.below(3) == 0 ? s_.problem().op_count() / 4 + 1 : 4;
    int32_t by = 1 + random_.below(reach);
    ProgramPoint to{at.position() + (random_.coin() ? by : -by), at.op()};
    if (to.position() > s_.problem().op_count()) return false;
    if (s_.is_copy(at.op())) return shift_copy(at, to);
    if (!s_.may_insert(to)) return false;
    s_.erase(at);
    s_.insert(to);
    return true;
  }

  // A copy keeps its other end.
  bool shift_copy(ProgramPoint at, ProgramPoint to) {
    s_.erase_alone(at);
    if (!s_.may_insert(to)) return false;
    s_.insert_alone(to);
    return true;
  }

  // Puts a reload in the place of a remat, or a remat in the place of a reload.
  bool exchange_one() {
    ProgramPoint at = any_extra();
    if (s_.is_offload(at.op())) return false;
    int32_t value = s_.op(at.op()).writes[0];
    ProgramPoint use = s_.next_use(value, at);
    int32_t other = s_.is_reload(at.op()) ? s_.producer(value) : s_.reload_of(value);
    if (use == s_.none() || other < 0) return false;
    s_.erase_with_unread(at);
    ProgramPoint instead = s_.is_reload(other) && random_.coin()
                               ? s_.unhurried(other, use.position(), s_.last_use(value, at))
                               : s_.point_before(use.position(), other);
    if (!s_.may_insert(instead)) return false;
    s_.insert_with_ancestors(instead, 1 + random_.below(3));
    return true;
  }

  // Moves all remats and reloads that stand before one op to before another.
  bool shift_position() {
    int32_t from = s_.position_after(any_extra()), by = 1 + random_.below(6);
    int32_t to = random_.coin() ? from + by : from - by;
    if (to <= 0 || to > s_.problem().op_count()) return false;
    llvm::SmallVector<ProgramPoint, 16> group;
    for (ProgramPoint at : s_.extras())
      if (s_.position_after(at) == from) group.push_back(at);
    for (ProgramPoint at : group) s_.erase_alone(at);
    for (ProgramPoint at : group) {
      ProgramPoint moved = s_.point_before(to, at.op());
      if (s_.may_insert(moved))
        s_.insert_alone(moved);
      else if (s_.is_copy(at.op()))
        return false;  // the copy's other end would be left alone
    }
    return true;
  }

  bool swap_two() {
    erase_one();
    if (s_.memory().peak() <= limit_) return insert_at(anywhere());
    return insert_at(random_.below(4) > 0 ? s_.memory().peak_point() : above_limit());
  }

  RematSchedule& s_;
  int64_t limit_;
  int64_t steps_;
  double enough_us_;
  Random random_;
  int64_t excess_;
  std::vector<ProgramPoint> best_;
  double best_us_ = 0;
  int64_t best_excess_ = 0;
  double hottest_ = 0, temperature_ = 0, price_ = 0;
};

}  // namespace

void anneal(RematSchedule& schedule, int64_t limit, int64_t steps, double enough_us) {
  if (schedule.memory().peak() > limit || !schedule.extras().empty()) Annealer(schedule, limit, steps, enough_us).run();
}

}  // namespace plimsoll::remat
