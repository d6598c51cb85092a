#include "passes/fit/channel_loads.h"

#include "ir/copy_bus.h"

#include <algorithm>

namespace plimsoll::fit {

ChannelLoads::ChannelLoads(const RecomputeProblem& problem) : shares_(problem.copy_shares) {
  for (const RecomputeOp& op : problem.ops) switch (op.channel) {
      case Channel::Compute: compute_us_ += op.cost_us; break;
      case Channel::ToHost: to_host_us_ += op.cost_us; break;
      case Channel::ToDevice: to_device_us_ += op.cost_us; break;
    }
}

void ChannelLoads::add(Channel channel, double us) {
  placed_us_ += us;
  if (channel == Channel::Compute) {
    repeated_us_ += us;
  } else {
    (channel == Channel::ToHost ? to_host_us_ : to_device_us_) += us;
    copied_us_ += us;
  }
}

double ChannelLoads::added_us() const {
  return std::max(repeated_us_, least_copying_us(to_host_us_, to_device_us_, shares_) - compute_us_) + hidden_price_us();
}

}  // namespace plimsoll::fit
