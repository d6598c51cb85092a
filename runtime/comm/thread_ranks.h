#pragma once

// Ranks that are threads of one process, for tests and for trying a plan without a launcher.

#include "runtime/comm/communicator.h"

#include <vector>

namespace plimsoll {

// One end for each of `count` threads. A rank that goes away makes the others' calls fail.
std::vector<std::unique_ptr<Communicator>> make_thread_ranks(int64_t count, double patience_s = default_patience_s);

}  // namespace plimsoll
