#pragma once

#include "passes/remat/remat.h"

namespace plimsoll::fit {

// How much longer than its own compute a sequence takes at least, its channels side by side: as long as computing, or as both ways of copies.
class ChannelLoads {
 public:
  static constexpr double price_of_hidden_copies = 0.02;  // of their time: hiding is no reason to copy

  explicit ChannelLoads(const RecomputeProblem& problem);

  // A repeat or a copy, to what the problem has; and one that was added, away again.
  void add(Channel channel, double us) { change(channel, us, toll_.us(us)); }
  void remove(Channel channel, double us) { change(channel, -us, -toll_.us(us)); }

  double added_us() const;
  double hidden_price_us() const { return price_of_hidden_copies * copied_us_; }
  // All that was added, as if nothing hid.
  double placed_us() const { return placed_us_; }

 private:
  void change(Channel channel, double us, double toll_us);

  CopyShares shares_;
  CopyToll toll_;
  double compute_us_ = 0;   // of the problem
  double repeated_us_ = 0;  // compute that was added, with what copies cost it
  double to_host_us_ = 0, to_device_us_ = 0;
  double copied_us_ = 0;    // copies that were added
  double placed_us_ = 0;
};

}  // namespace plimsoll::fit
