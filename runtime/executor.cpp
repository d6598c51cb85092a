#include "runtime/executor.h"

#include "runtime/cpu/cpu_executor.h"
#include "runtime/cuda/cuda_executor.h"

namespace plimsoll {

Result<std::unique_ptr<Executor>> Executor::create(const Plan& plan, const ExecutorOptions& options) {
  if (plan.device.backend == "cpu") return create_cpu_executor(plan, options);
  if (plan.device.backend == "cuda") return create_cuda_executor(plan, options);
  return model_error("the plan is for the backend '" + plan.device.backend + "', this program knows cpu and cuda");
}

}  // namespace plimsoll
