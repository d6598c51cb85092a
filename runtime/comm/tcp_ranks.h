#pragma once

// Ranks that meet at one address and then have a connection for each two of them. What all ranks do together goes
// through rank 0: enough to introduce ranks to each other, and for small jobs on CPUs.

#include "runtime/comm/communicator.h"

namespace plimsoll {

Result<std::unique_ptr<Communicator>> connect_by_tcp(int64_t rank, int64_t ranks, const std::string& host, int port,
                                                     double patience_s);

}  // namespace plimsoll
