#pragma once

#include "runtime/executor.h"

namespace plimsoll {

// Runs on the calling thread and its OpenMP team; a run is done when run() returns.
Result<std::unique_ptr<Executor>> create_cpu_executor(const Plan& plan, const ExecutorOptions& options);

}  // namespace plimsoll
