#include "passes/remat/engine_loads.h"

#include "ir/machine/duplex_link.h"

#include <algorithm>

namespace plimsoll::fit {

ChannelLoads::ChannelLoads(const RecomputeProblem& problem) : shares_(problem.copy_shares), toll_(problem.copy_toll) {
  for (const RecomputeOp& op : problem.ops) {
    compute_us_ += problem.compute_us(op);
    if (op.channel != Channel::Compute) (op.channel == Channel::ToHost ? to_host_us_ : to_device_us_) += op.cost_us;
  }
}

void ChannelLoads::change(Channel channel, double us, double toll_us) {
  placed_us_ += us;
  if (channel == Channel::Compute) {
    repeated_us_ += us;
  } else {
    (channel == Channel::ToHost ? to_host_us_ : to_device_us_) += us;
    copied_us_ += us;
    repeated_us_ += toll_us;
  }
}

double ChannelLoads::added_us() const {
  return std::max(repeated_us_, least_copying_us(to_host_us_, to_device_us_, shares_) - compute_us_) + hidden_price_us();
}

}  // namespace plimsoll::fit
