#include "passes/remat/remat_descent.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

// Large neighbourhood search (Shaw 1998): remats that stand close to each other, or any few, are taken out with what
// only they need, and a random descent lowers the peak again. What comes of it is accepted as in simulated annealing,
// and given up as soon as it adds more time than would be accepted. While nothing is within the limit, what has no more
// excess than before is accepted.

namespace plimsoll::remat {
namespace {

constexpr int32_t windows = 5;       // remats at most a fifth of the schedule away from one of them are taken out, or
constexpr int32_t most_at_once = 6;  // so many of all
constexpr int32_t spared = 8;        // one of so many in a window stays
constexpr double hottest = 0.02;     // temperature as a share of the added time, at the start and
constexpr double coldest = 0.0005;   // at the end
constexpr int64_t most_idle = 150;   // rounds in a row that find nothing better end the search
constexpr int64_t min_steps = 100;   // that a round counts for
constexpr double rounding = 1e-12;   // difference between sums of the same costs in another order
constexpr double none = std::numeric_limits<double>::infinity();

class Repair {
 public:
  Repair(RematSchedule& schedule, int64_t limit, int64_t steps, double enough_us)
      : s_(schedule), descent_(schedule, Tried::Promising), limit_(limit), steps_(steps), enough_us_(enough_us) {
    s_.forget_journal();
    best_ = s_.extras().vec();
    excess_ = s_.memory().excess(limit_);
    best_us_ = current_us_ = excess_ == 0 ? s_.added_us() : none;
  }

  void run() {
    const int64_t start = s_.memory().steps();
    for (int64_t rounds = 0; best_us_ > enough_us_ * (1 + rounding) && idle_ < most_idle; ++rounds) {
      const double done =
          static_cast<double>(s_.memory().steps() - start + rounds * min_steps) / static_cast<double>(steps_);
      if (done >= 1) break;
      const double temperature = hottest * std::pow(coldest / hottest, done);
      ++idle_;
      take_out();
      if (lower(current_us_ * (1 - temperature * std::log(1 - random_.unit()))))
        keep();
      else
        s_.rewind(0);
    }
    set_extras(s_, best_);
  }

 private:
  void take_out() {
    std::vector<ProgramPoint> remats = s_.extras().vec();
    const auto count = static_cast<int32_t>(remats.size());
    if (count == 0) return;
    if (random_.coin()) {
      const int32_t center = remats[random_.below(count)].position();
      const int32_t reach = random_.below(std::max(2, s_.problem().op_count() / windows));
      llvm::erase_if(remats, [&](ProgramPoint at) {
        return std::abs(at.position() - center) > reach || random_.below(spared) == 0;
      });
    } else {
      const int32_t taken = 1 + random_.below(std::min(count, most_at_once));
      for (int32_t i = 0; i < taken; ++i) std::swap(remats[i], remats[i + random_.below(count - i)]);
      remats.resize(taken);
    }
    for (ProgramPoint at : remats)
      if (s_.has(at)) s_.erase_with_unread(at);
  }

  // Whether the schedule is within the limit again for at most so much, or while none is, has no more excess.
  bool lower(double most_us) {
    if (descent_.lower_at_random(limit_, random_, most_us)) drop_unneeded(s_, limit_);
    const int64_t excess = s_.memory().excess(limit_);
    if (excess > excess_ || (excess == 0 && s_.added_us() > most_us)) return false;
    if (excess < excess_) idle_ = 0;
    excess_ = excess;
    return true;
  }

  void keep() {
    s_.forget_journal();
    if (excess_ > 0) return;
    current_us_ = s_.added_us();
    if (current_us_ >= best_us_ * (1 - rounding)) return;
    idle_ = 0;
    best_us_ = current_us_;
    best_ = s_.extras().vec();
  }

  RematSchedule& s_;
  Descent descent_;
  int64_t limit_, steps_;
  double enough_us_;
  Random random_;
  std::vector<ProgramPoint> best_;
  double best_us_, current_us_;
  int64_t idle_ = 0;  // rounds since the last that found something better
  int64_t excess_;    // of the schedule that rounds go on from
};

}  // namespace

void repair(RematSchedule& schedule, int64_t limit, int64_t steps, double enough_us) {
  Repair(schedule, limit, steps, enough_us).run();
}

}  // namespace plimsoll::remat
