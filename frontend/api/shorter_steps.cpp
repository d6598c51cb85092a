#include "frontend/api/shorter_steps.h"

#include "passes/add_lengths.h"

namespace plimsoll {

Result<Plan> with_shorter_steps(const Job& job, const TrainingRequest& training, Plan plan, const CompileHooks& hooks) {
  Result<StageDevices> devices = job.stage_devices_for(training.mesh);
  if (!devices) return devices.takeError();
  for (int64_t length : job.request().shorter_lengths) {
    CompileRequest request = job.request();
    request.import.dims[request.length_dim] = length;
    request.training.evaluation = {};
    Result<Job> shorter = Job::open(std::move(request), hooks);
    if (!shorter) return in_context("--lengths", shorter.takeError());
    Result<Plan> grown = add_shorter_step(shorter->model(), length, training, *devices, plan);
    if (!grown) return grown;
    plan = std::move(*grown);
  }
  return plan;
}

}  // namespace plimsoll
