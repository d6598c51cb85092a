#pragma once

// The link between ranks, as planning sees it: collectives follow one another in the order they are issued, and those
// of one launch are all through when its last one is. While computing runs beside them both are slower; while computing
// waits, the collective at work has the link for itself.

#include "ir/engine.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace plimsoll {

// The link's work for one launch: its members' times alone, less what they save by joining the first of them.
class CollectiveLaunch {
 public:
  explicit CollectiveLaunch(const CollectiveShares& shares) : shares_(shares) {}

  // A launch takes no more collectives once it has so much work: whoever waits for one of them waits for all.
  static constexpr double max_us = 200;

  // Returns how much work the member adds.
  double add(double alone_us) {
    const double more_us = is_begun_ ? std::max(0.0, alone_us - shares_.launch_us) : alone_us;
    is_begun_ = true;
    us_ += more_us;
    return more_us;
  }
  double us() const { return us_; }
  bool is_full() const { return us_ >= max_us; }

 private:
  CollectiveShares shares_;
  double us_ = 0;
  bool is_begun_ = false;
};

class CollectiveLink {
 public:
  void restart(const CollectiveShares& shares) {
    shares_ = shares;
    collectives_.clear();
    launches_.clear();
    through_ = 0;
    issued_us_ = done_us_ = 0;
  }

  // `alone_us` of work; one that joins the collective ahead of it is part of that launch. Returns its place.
  size_t issue(double alone_us, bool joins, double now_us) {
    joins &= !launches_.empty() && !launches_.back().work.is_full();
    if (!joins) launches_.push_back({CollectiveLaunch(shares_), 0, 0});
    issued_us_ += launches_.back().work.add(alone_us);
    const double start_us =
        is_busy() || collectives_.empty() ? now_us : std::max(now_us, collectives_.back().finish_us);
    launches_.back().work_end_us = issued_us_;
    launches_.back().last = collectives_.size();
    collectives_.push_back({issued_us_, start_us, start_us, launches_.size() - 1});
    return collectives_.size() - 1;
  }

  // Computing that takes `alone_us` starts at `now_us`. Returns how long it takes.
  double compute(double alone_us, double now_us) {
    if (!is_busy()) return alone_us;
    const double beside_us = std::min(alone_us / shares_.compute, left_us() / shares_.link);
    proceed(beside_us * shares_.link, now_us, shares_.link);
    return beside_us + std::max(0.0, alone_us - beside_us * shares_.compute);
  }

  // Computing does nothing for so long.
  void idle(double us, double now_us) {
    if (is_busy()) proceed(std::min(us, left_us()), now_us, 1);
  }

  // How much longer a collective's launch takes if nothing is computed meanwhile; 0: it is through.
  double left_us(size_t place) const { return left_until(launches_[collectives_[place].launch].work_end_us); }
  double left_us() const { return is_busy() ? issued_us_ - done_us_ : 0; }
  // When the collective's own part of the launch is at work; all are known once its launch is through.
  double start_us(size_t place) const { return collectives_[place].start_us; }
  double finish_us(size_t place) const { return collectives_[place].finish_us; }
  double launch_finish_us(size_t place) const { return finish_us(launches_[collectives_[place].launch].last); }

 private:
  struct Collective {
    double work_end_us;  // the link's work, alone, until it is through
    double start_us, finish_us;
    size_t launch;
  };
  struct Launch {
    CollectiveLaunch work;
    double work_end_us;  // the link's work until it is through
    size_t last;         // collective
  };

  double left_until(double work_end_us) const {
    const double us = work_end_us - done_us_;
    return us > rounding_us ? us : 0;
  }
  bool is_busy() const { return through_ < collectives_.size(); }

  void proceed(double work_us, double now_us, double speed) {
    const double begin_us = done_us_;
    done_us_ += work_us;
    for (; is_busy() && left_until(collectives_[through_].work_end_us) == 0; ++through_) {
      collectives_[through_].finish_us = now_us + (collectives_[through_].work_end_us - begin_us) / speed;
      if (through_ + 1 < collectives_.size())
        collectives_[through_ + 1].start_us =
            std::max(collectives_[through_ + 1].start_us, collectives_[through_].finish_us);
    }
  }

  static constexpr double rounding_us = 1e-6;  // sums of the same times in another order differ by less

  CollectiveShares shares_;
  std::vector<Collective> collectives_;
  std::vector<Launch> launches_;
  size_t through_ = 0;  // number of collectives that are done
  double issued_us_ = 0, done_us_ = 0;
};

}  // namespace plimsoll
