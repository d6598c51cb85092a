#pragma once

#include "passes/remat/remat.h"

namespace plimsoll::remat {

// A lower bound of the time that a schedule takes beyond its own compute: with all engines side by side it takes as
// long as compute, or as the copies of both directions.
class EngineLoads {
 public:
  // Share of their time that copies cost even when they hide behind compute, so that the cheaper of two plans copies
  // less.
  static constexpr double price_of_hidden_copies = 0.02;

  explicit EngineLoads(const RematProblem& problem);

  // Adds a remat or copy to what the problem has, or takes it away again.
  void add(Engine engine, double us) { change(engine, us, interference_.us(us)); }
  void remove(Engine engine, double us) { change(engine, -us, -interference_.us(us)); }

  double added_us() const;
  double hidden_price_us() const { return price_of_hidden_copies * copied_us_; }
  // The time of all remats and copies that were added, as if none of it hid.
  double placed_us() const { return placed_us_; }

 private:
  void change(Engine engine, double us, double interference_us);

  DuplexShares shares_;
  CopyInterference interference_;
  double compute_us_ = 0;  // of the problem
  double remat_us_ = 0;    // remats that were added, and the interference of copies that were added
  double to_host_us_ = 0, to_device_us_ = 0;
  double copied_us_ = 0;  // copies that were added
  double placed_us_ = 0;
};

}  // namespace plimsoll::remat
