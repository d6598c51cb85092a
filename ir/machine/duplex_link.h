#pragma once

// The link between a device's memory and its host's, as planning sees it: one engine for each direction, each slower
// while both are at work.

#include "ir/engine.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <limits>
#include <vector>

namespace plimsoll {

// The minimum time in which both engines do work that takes each of them so long alone.
double min_copying_us(double to_host_us, double to_device_us, const DuplexShares& shares);

// Copies of an engine run one after another, in the order they are issued. Time passes from call to call and never goes
// back. Speeds change only when a copy starts or ends, so of the copy at work only its end is kept; it moves where the
// other engine starts or ends work. A search asks millions of times, hence all of it is inline.
class DuplexLink {
 public:
  void restart(const DuplexShares& shares) {
    ways_[0].restart(shares.to_host);
    ways_[1].restart(shares.to_device);
  }

  // A moment that the link can be taken back to.
  struct Mark {
    double end_us[2] = {idle, idle};
    size_t through[2] = {0, 0}, issued[2] = {0, 0};
  };
  Mark mark() const {
    return {{ways_[0].end_us, ways_[1].end_us},
            {ways_[0].through, ways_[1].through},
            {ways_[0].copies.size(), ways_[1].copies.size()}};
  }
  // What happened since then has not happened.
  void rewind(const Mark& mark) {
    for (size_t i = 0; i < 2; ++i) {
      ways_[i].end_us = mark.end_us[i];
      ways_[i].through = mark.through[i];
      ways_[i].copies.resize(mark.issued[i]);
    }
  }

  // The copy starts now or when its engine is through with those before. Returns its place among them.
  size_t issue(Engine engine, double alone_us, double now_us) {
    run_until(now_us);
    Way &way = ways_[is_to_device(engine)], &other = ways_[!is_to_device(engine)];
    way.copies.push_back({alone_us, 0, 0});
    if (!way.is_busy()) {
      start_next(way, other, now_us);
      if (other.is_busy()) other.end_us = now_us + (other.end_us - now_us) * other.slower;
    }
    return way.copies.size() - 1;
  }

  // When the copy is through if no other is issued until then.
  double finish_us(Engine engine, size_t place) {
    const Way& way = ways_[is_to_device(engine)];
    while (way.through <= place) complete_next();
    return way.copies[place].finish_us;
  }

  // When the copy started, which it must have.
  double start_us(Engine engine, size_t place) const { return ways_[is_to_device(engine)].copies[place].start_us; }

  // When all copies that were issued are through.
  double through_us() {
    while (ways_[0].is_busy() || ways_[1].is_busy()) complete_next();
    return std::max(ways_[0].last_us(), ways_[1].last_us());
  }

 private:
  static constexpr double idle = std::numeric_limits<double>::infinity();

  struct Copy {
    double alone_us, start_us, finish_us;  // start and finish are set once they are known
  };

  struct Way {
    double share = 1, slower = 1;  // of its speed alone, while both run; and the inverse
    double end_us = idle;          // of the copy at work, if the other engine goes on as now
    size_t through = 0;            // number of copies that are done
    std::vector<Copy> copies;

    bool is_busy() const { return end_us < idle; }
    double last_us() const { return copies.empty() ? 0 : copies.back().finish_us; }
    void restart(double share_beside) {
      share = share_beside;
      slower = 1 / share_beside;
      end_us = idle;
      through = 0;
      copies.clear();
    }
  };

  static bool is_to_device(Engine engine) { return engine == Engine::ToDevice; }

  static void start_next(Way& way, const Way& other, double now_us) {
    Copy& copy = way.copies[way.through];
    copy.start_us = now_us;
    way.end_us = now_us + (other.is_busy() ? copy.alone_us * way.slower : copy.alone_us);
  }

  void complete_next() {
    const bool to_device = ways_[1].end_us < ways_[0].end_us;
    Way &way = ways_[to_device], &other = ways_[!to_device];
    assert(way.is_busy() && "a copy is waited for after it was issued");
    const double now_us = way.end_us;
    way.copies[way.through++].finish_us = now_us;
    if (way.through < way.copies.size()) return start_next(way, other, now_us);
    way.end_us = idle;
    if (other.is_busy()) other.end_us = now_us + (other.end_us - now_us) * other.share;
  }

  void run_until(double now_us) {
    while (std::min(ways_[0].end_us, ways_[1].end_us) <= now_us) complete_next();
  }

  Way ways_[2];  // to the host, to the device
};

}  // namespace plimsoll
