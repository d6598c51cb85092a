#include "ir/machine/duplex_link.h"

namespace plimsoll {

// The engines run side by side until one of them is through, or one after the other; no mixture is shorter than both.
double min_copying_us(double to_host_us, double to_device_us, const DuplexShares& shares) {
  const double together_us = std::min(to_host_us / shares.to_host, to_device_us / shares.to_device);
  const double left_us = std::max(to_host_us - shares.to_host * together_us, 0.0) +
                         std::max(to_device_us - shares.to_device * together_us, 0.0);
  return std::min(together_us + left_us, to_host_us + to_device_us);
}

}  // namespace plimsoll
