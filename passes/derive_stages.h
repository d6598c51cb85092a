#pragma once

// From the clean forward graph of a model to the scheduled functions of each stage of a pipeline.

#include "passes/derive_program.h"

namespace plimsoll {

struct DerivedStages {
  std::vector<Derived> stages;
  PipelineSummary pipeline;
};

// Cuts the model into as many stages as the mesh has, at values that alone go from one side to the other, so that the
// slowest stage takes least predicted time; each stage's step takes the micro-batches through forward and backward in
// the order of `schedule`. Errors say what prevents as many stages or micro-batches.
Result<DerivedStages> derive_stages(const ForwardModel& forward, const TrainingRequest& request,
                                    PipelineSchedule schedule, const DeviceDescription& device,
                                    const KernelCatalog& catalog, PassManager passes);

}  // namespace plimsoll
