#include "frontend/api/fit.h"

#include "frontend/api/choose_plan.h"
#include "frontend/api/machine.h"

namespace plimsoll {

Result<DeviceAnswer> fit_on(const Job& model, const DeviceDescription& device, const CompileHooks& hooks) {
  Result<Job> job = model.on(device);
  if (!job) return job.takeError();
  TrainingRequest training = job->request().training;
  if (device.backend == "cpu" && training.budget_bytes == 0) training.budget_bytes = memory_here();
  Result<CompileResult> result = choose_plan(*job, training, hooks);
  if (!result) return result.takeError();
  training = with_choices_of(result->plan, std::move(training), job->request());
  return DeviceAnswer{std::move(*job), std::move(training), std::move(*result)};
}

}  // namespace plimsoll
