#pragma once

#include "frontend/api/job.h"

namespace plimsoll {

// What one device answers to a job.
struct DeviceAnswer {
  Job job;                   // on that device
  TrainingRequest training;  // with the choices that were made, and the device's budget
  CompileResult result;

  int64_t lacks_bytes() const { return result.plan.promised_bytes() - result.plan.arenas.front().budget_bytes; }
};

// Plans `model` for `device`. Without a budget of its own a job on the CPU may hold this machine's memory.
Result<DeviceAnswer> fit_on(const Job& model, const DeviceDescription& device, const CompileHooks& hooks = {});

}  // namespace plimsoll
