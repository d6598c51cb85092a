#pragma once

#include "passes/fit/recompute.h"

namespace plimsoll::fit {

// How much longer than its compute a sequence takes when its channels work side by side. Copies hide behind compute, but
// not behind any: those before the peak store what those after it fetch. So each of two parts takes as long as its busiest channel.
class ChannelLoads {
 public:
  static constexpr double price_of_hidden_copies = 0.02;  // of their time: hiding is no reason to copy

  // Ops up to `last_of_first` are in the first part; where it is op_count(), all are.
  ChannelLoads(const RecomputeProblem& problem, int32_t last_of_first);

  // To what the problem has.
  void add(Channel channel, bool second_part, double us);

  double added_us() const;
  // The problem's own compute less its own copies: what hides copies that are added.
  double idle_us(Channel channel, bool second_part) const;
  // All that was added, as if nothing hid.
  double placed_us() const { return placed_us_; }

 private:
  struct Part {
    double compute_us = 0;   // of the problem
    double repeated_us = 0;  // compute that was added
    double to_host_us = 0, to_device_us = 0;
    double own_to_host_us = 0, own_to_device_us = 0;  // of the problem
  };

  Part parts_[2];
  double copied_us_ = 0;     // copies that were added
  double placed_us_ = 0;
};

}  // namespace plimsoll::fit
