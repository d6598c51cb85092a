#pragma once

#include "kernels/cpu/common/philox.h"
#include "runtime/kernels/elementwise.h"

namespace plimsoll {

// The random numbers an op draws; operand `rng` holds seed and step.
inline cpu::RandomStream random_stream(const KernelCall& k, PortKey rng = "rng") {
  const auto* counters = k.in<int64_t>(rng);
  return {static_cast<uint64_t>(counters[0]), static_cast<uint32_t>(counters[1]),
          static_cast<uint32_t>(k.call.get_int("id"))};
}

}  // namespace plimsoll
