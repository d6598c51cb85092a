#pragma once

// How long compute takes beside copies: compute waits for copies, copies are issued, compute runs. Whoever calls
// decides the order; a search calls millions of times, hence all of it is inline.

#include "ir/machine/duplex_link.h"

namespace plimsoll {

class EngineClock {
 public:
  void restart(const DuplexShares& shares, const CopyInterference& interference) {
    link_.restart(shares);
    interference_ = interference;
    now_us_ = ranks_us_ = 0;
  }

  double now_us() const { return now_us_; }  // where compute is
  void set_now_us(double us) { now_us_ = us; }
  void compute(double us) { now_us_ += us; }

  // The copy starts once its engine is through with the copies issued before; it holds compute up by its interference.
  // Returns its place in its engine.
  size_t issue(Engine engine, double alone_us) {
    const size_t place = link_.issue(engine, alone_us, now_us_);
    now_us_ += interference_.us(alone_us);
    return place;
  }

  // A collective follows those before it, and takes `interference` of its time from computing. Returns when it ends.
  double issue_collective(double us, double interference) {
    ranks_us_ = std::max(ranks_us_, now_us_) + us;
    now_us_ += interference * us;
    return ranks_us_;
  }
  // Returns how long compute waits.
  double wait_until(double us) {
    const double stall_us = std::max(0.0, us - now_us_);
    now_us_ = std::max(now_us_, us);
    return stall_us;
  }

  // Returns how long compute waits for the copy.
  double wait_for(Engine engine, size_t place) { return wait_until(link_.finish_us(engine, place)); }

  double start_us(Engine engine, size_t place) const { return link_.start_us(engine, place); }
  double finish_us(Engine engine, size_t place) { return link_.finish_us(engine, place); }
  // When compute and all copies are through.
  double through_us() { return std::max(now_us_, link_.through_us()); }

 private:
  DuplexLink link_;
  CopyInterference interference_;
  double now_us_ = 0, ranks_us_ = 0;  // ranks_us_: when all collectives are through
};

}  // namespace plimsoll
