#pragma once

// How long compute takes beside copies and collectives: compute waits for them, they are issued, compute runs. Whoever
// calls decides the order; a search calls millions of times, hence all of it is inline.

#include "ir/machine/collective_link.h"
#include "ir/machine/duplex_link.h"

namespace plimsoll {

class EngineClock {
 public:
  void restart(const DuplexShares& shares, const CopyInterference& interference,
               const CollectiveShares& collectives = {}) {
    link_.restart(shares);
    ranks_.restart(collectives);
    interference_ = interference;
    now_us_ = 0;
  }

  // A moment that a clock without collectives can be taken back to.
  struct Mark {
    double now_us = 0;
    DuplexLink::Mark link;
  };
  Mark mark() const { return {now_us_, link_.mark()}; }
  void rewind(const Mark& mark) {
    now_us_ = mark.now_us;
    link_.rewind(mark.link);
  }

  double now_us() const { return now_us_; }  // where compute is
  void set_now_us(double us) { now_us_ = us; }
  void compute(double us) { now_us_ += ranks_.compute(us, now_us_); }

  // The copy starts once its engine is through with the copies issued before; it holds compute up by its interference.
  // Returns its place in its engine.
  size_t issue(Engine engine, double alone_us) {
    const size_t place = link_.issue(engine, alone_us, now_us_);
    const double lost_us = interference_.us(alone_us);
    ranks_.idle(lost_us, now_us_);
    now_us_ += lost_us;
    return place;
  }
  // Whether it joins the launch of the collective ahead of it. Returns its place among collectives.
  size_t issue_collective(double alone_us, bool joins) { return ranks_.issue(alone_us, joins, now_us_); }

  // Returns how long compute waits for the copy or collective.
  double wait_for(Engine engine, size_t place) {
    return wait_until(engine == Engine::Ranks ? now_us_ + ranks_.left_us(place) : link_.finish_us(engine, place));
  }
  // Returns how long compute waits.
  double wait_until(double us) {
    const double stall_us = std::max(0.0, us - now_us_);
    ranks_.idle(stall_us, now_us_);
    now_us_ = std::max(now_us_, us);
    return stall_us;
  }
  bool is_through(size_t collective) const { return ranks_.left_us(collective) == 0; }

  // Known once the copy or collective was waited for.
  double start_us(Engine engine, size_t place) const {
    return engine == Engine::Ranks ? ranks_.start_us(place) : link_.start_us(engine, place);
  }
  double finish_us(Engine engine, size_t place) {
    return engine == Engine::Ranks ? ranks_.finish_us(place) : link_.finish_us(engine, place);
  }
  // Until when whoever waits for the copy or collective waits.
  double launch_finish_us(Engine engine, size_t place) {
    return engine == Engine::Ranks ? ranks_.launch_finish_us(place) : link_.finish_us(engine, place);
  }
  // When compute and all copies and collectives are through.
  double through_us() { return std::max(now_us_ + ranks_.left_us(), link_.through_us()); }

 private:
  DuplexLink link_;
  CollectiveLink ranks_;
  CopyInterference interference_;
  double now_us_ = 0;
};

}  // namespace plimsoll
