#include "frontend/api/shorter_steps.h"

#include "passes/add_lengths.h"

namespace plimsoll {

Result<Plan> with_shorter_steps(const Job& job, const TrainingRequest& training, Plan plan, const CompileHooks& hooks) {
  Result<DeviceDescription> device = job.device_for(training.mesh);
  if (!device) return device.takeError();
  for (int64_t length : job.request().shorter_lengths) {
    CompileRequest request = job.request();
    request.import.dims[request.length_dim] = length;
    request.training.evaluation = {};
    Result<Job> shorter = Job::open(std::move(request), hooks);
    if (!shorter) return in_context("--lengths", shorter.takeError());
    Result<Plan> grown = add_shorter_step(shorter->model(), length, training, *device, job.catalog(), plan);
    if (!grown) return grown;
    plan = std::move(*grown);
  }
  return plan;
}

}  // namespace plimsoll
