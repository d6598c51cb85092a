#pragma once

// From the clean forward graph of a model to the scheduled functions of each stage of a pipeline.

#include "ir/machine/stage_devices.h"
#include "passes/derive_program.h"
#include "passes/partition/divide_as_planned.h"
#include "passes/partition/stage_cuts.h"
#include "passes/partition/stages_as_planned.h"

namespace plimsoll {

// The most nodes of all stages together: deriving more takes long, and so does planning them.
inline constexpr size_t max_pipeline_nodes = 60000;

struct DerivedStages {
  std::vector<Derived> stages;
  PipelineSummary pipeline;
  std::vector<StageCut> cuts;  // by run of layers, as the tables have it; reserves are not among its bytes
  size_t blocks = 0;           // that were cut
};

// What plans have shown of a run of layers beside the tables.
struct StageFindings {
  int64_t unforeseen_bytes = 0;                      // that it needs
  std::vector<std::pair<size_t, size_t>> too_large;  // runs of blocks that do not fit
};

// Cuts the model into runs of layers for as many stages as the mesh has, at values that alone go from one side to the
// other, so that every run fits its share of its stage's budget, by remats and copies where it must, and the slowest
// takes least predicted time. Each stage's step takes the micro-batches through forward and backward in the order of
// the schedule. `findings` are by run; empty: none so far. Errors say what prevents as many runs or micro-batches.
Result<DerivedStages> derive_stages(const ForwardModel& forward, const TrainingRequest& request, const StageRuns& runs,
                                    const StageDevices& devices, PassManager passes,
                                    llvm::ArrayRef<StageFindings> findings = {});

// What a finished plan has decided of its stages and states, for another length of the same model.
struct PlannedStages {
  StagesOfStates owners;
  llvm::StringMap<OwnState> states;
};
// The same with the stages, and the parts of tensors, of a plan that exists; `request` says the micro-batches. The
// error says that the model cannot be cut so.
Result<DerivedStages> derive_stages_as_planned(const ForwardModel& forward, const TrainingRequest& request,
                                               const StageRuns& runs, const StageDevices& devices, PassManager passes,
                                               const PlannedStages& planned);

}  // namespace plimsoll
