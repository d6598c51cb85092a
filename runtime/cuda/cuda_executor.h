#pragma once

#include "runtime/executor.h"

namespace plimsoll {

// The program's side of the CUDA backend. Errors where there is no driver, no card of the plan's kind, or a library is
// missing.
Result<std::unique_ptr<Executor>> create_cuda_executor(const Plan& plan, const ExecutorOptions& options);

}  // namespace plimsoll
