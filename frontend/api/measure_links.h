#pragma once

// Measures how fast the ranks that are here talk to each other.

#include "ir/machine/cluster.h"
#include "runtime/comm/communicator.h"

namespace plimsoll {

// Every rank calls it, with the device that it runs on. Times sums and gathers of 4 KiB to 64 MiB and fits base and
// rate; where ranks are on several hosts, that is the network's. On GPUs it also times a sum beside products. Seconds
// on CPUs, up to a minute on GPUs.
Result<ClusterDescription> measure_links(Communicator& ranks, const DeviceDescription& device);

}  // namespace plimsoll
