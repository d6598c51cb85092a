#pragma once

#include "passes/remat/remat.h"

namespace plimsoll::remat {

// How much longer than its own compute a schedule takes at least, its engines side by side: as long as computing, or as
// both ways of copies.
class EngineLoads {
 public:
  static constexpr double price_of_hidden_copies = 0.02;  // of their time: hiding is no reason to copy

  explicit EngineLoads(const RematProblem& problem);

  // A repeat or a copy, to what the problem has; and one that was added, away again.
  void add(Engine engine, double us) { change(engine, us, interference_.us(us)); }
  void remove(Engine engine, double us) { change(engine, -us, -interference_.us(us)); }

  double added_us() const;
  double hidden_price_us() const { return price_of_hidden_copies * copied_us_; }
  // All that was added, as if nothing hid.
  double placed_us() const { return placed_us_; }

 private:
  void change(Engine engine, double us, double interference_us);

  DuplexShares shares_;
  CopyInterference interference_;
  double compute_us_ = 0;  // of the problem
  double remat_us_ = 0;    // compute that was added, with what copies cost it
  double to_host_us_ = 0, to_device_us_ = 0;
  double copied_us_ = 0;  // copies that were added
  double placed_us_ = 0;
};

}  // namespace plimsoll::remat
