#include "passes/fit/channel_loads.h"

#include <algorithm>

namespace plimsoll::fit {

ChannelLoads::ChannelLoads(const RecomputeProblem& problem, int32_t last_of_first) {
  for (int32_t o = 0; o < problem.op_count(); ++o) {
    const RecomputeOp& op = problem.ops[static_cast<size_t>(o)];
    Part& part = parts_[o > last_of_first];
    switch (op.channel) {
      case Channel::Compute: part.compute_us += op.cost_us; break;
      case Channel::ToHost: part.own_to_host_us += op.cost_us; break;
      case Channel::ToDevice: part.own_to_device_us += op.cost_us; break;
    }
  }
  for (Part& part : parts_) {
    part.to_host_us = part.own_to_host_us;
    part.to_device_us = part.own_to_device_us;
  }
}

void ChannelLoads::add(Channel channel, bool second_part, double us) {
  Part& part = parts_[second_part];
  placed_us_ += us;
  if (channel == Channel::Compute) {
    part.repeated_us += us;
  } else {
    (channel == Channel::ToHost ? part.to_host_us : part.to_device_us) += us;
    copied_us_ += us;
  }
}

double ChannelLoads::added_us() const {
  double sum = price_of_hidden_copies * copied_us_;
  for (const Part& part : parts_)
    sum += std::max(part.repeated_us, std::max(part.to_host_us, part.to_device_us) - part.compute_us);
  return sum;
}

double ChannelLoads::idle_us(Channel channel, bool second_part) const {
  const Part& part = parts_[second_part];
  return part.compute_us - (channel == Channel::ToHost ? part.own_to_host_us : part.own_to_device_us);
}

}  // namespace plimsoll::fit
