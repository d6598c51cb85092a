#pragma once

// The function "evaluate" of a plan. It runs between steps, so that the transient bytes of a step are free for it.

#include "ir/machine/stage_devices.h"
#include "passes/derive_program.h"

#include <map>

namespace plimsoll {

// The forward graph in inference mode, clean, with the outputs of evaluation: the loss, the model's own outputs, and
// what the metrics need (passes/evaluate/metrics.h). `forward` is the model as it was imported.
Result<Graph> make_evaluation_graph(Graph forward, llvm::StringRef loss, const EvaluationRequest& request,
                                    PassManager passes);

// Adds the function to finished plans. With a batch of 0 it is the training's, halved until evaluation needs no more
// transient bytes than training does, on every stage.
class EvaluationPlanner {
 public:
  // `model.evaluation` is the graph; all arguments outlive the planner.
  EvaluationPlanner(const CleanModel& model, const TrainingRequest& request, const StageDevices& devices)
      : model_(model), request_(request), devices_(devices) {}

  // The plan may then need more than its budget: constants and states of evaluation alone are persistent, and a batch
  // may be too large.
  Result<Plan> with_evaluation(const Plan& plan);

 private:
  struct Variant {
    std::vector<PlanDraft> drafts;  // by stage
    int64_t batch = 0;
    bool of_mean = false;
  };
  // `plan` says which weights have running means, and which stage has which states; all plans of a search have the
  // same.
  Result<const Variant*> variant(int64_t batch, const Plan& plan);
  // To a plan with its later stages, and to that of one stage.
  Result<Plan> add(const Plan& plan, const Variant& variant) const;
  Result<Plan> add_to_stage(const Plan& plan, const Variant& variant, size_t stage) const;

  const CleanModel& model_;
  const TrainingRequest& request_;
  const StageDevices& devices_;
  std::map<int64_t, Variant> variants_;  // by batch
};

// The plans of a search with the function added. `search` gives the plans of training with further reserves; it is
// asked again where the persistent bytes of evaluation break a budget.
Result<CompileResult> add_evaluation(CompileResult training, EvaluationPlanner& planner,
                                     llvm::function_ref<Result<CompileResult>(const Reserve& held_back)> search);

}  // namespace plimsoll
