#include "frontend/api/fit.h"

#include "frontend/api/choose_plan.h"
#include "frontend/api/machine.h"

namespace plimsoll {

Result<DeviceAnswer> fit_on(const Job& model, const DeviceDescription& device, const CompileHooks& hooks) {
  return fit_on(model, device, model.request().training, hooks);
}

Result<DeviceAnswer> fit_on(const Job& model, const DeviceDescription& device, TrainingRequest training,
                            const CompileHooks& hooks) {
  Result<DeviceDescription> linked = with_cluster(device, model.request().cluster, training.mesh.ranks());
  if (!linked) return linked.takeError();
  Result<Job> job = model.on(*linked);
  if (!job) return job.takeError();
  if (device.backend == "cpu" && training.budget_bytes == 0) training.budget_bytes = memory_here();
  Result<CompileResult> result = choose_plan(*job, training, hooks);
  if (!result) return result.takeError();
  training = with_choices_of(result->plan, std::move(training), job->request());
  return DeviceAnswer{std::move(*job), std::move(training), std::move(*result)};
}

}  // namespace plimsoll
