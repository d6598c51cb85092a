#include "passes/add_evaluation.h"

#include "ir/support/units.h"
#include "passes/compile.h"
#include "passes/evaluate/metrics.h"
#include "passes/evaluate/stored_states.h"
#include "passes/lower_to_plan.h"
#include "passes/offload/offload_rewrite.h"
#include "passes/partition/divide_as_planned.h"
#include "passes/partition/divide_batch.h"
#include "passes/pipelines.h"
#include "passes/states_of_plan.h"
#include "passes/train/optimizer_update.h"
#include "passes/train/training_step.h"

#include <algorithm>
#include <limits>

// The training is planned first, as if there were no evaluation; then evaluation gets a batch that fits into the bytes
// a step has anyway. So asking for evaluation changes nothing about the step.

namespace plimsoll {
namespace {

constexpr llvm::StringLiteral reserve_name = "constants of evaluation";

// Behind the loss, under names that no output of evaluation has.
void append_model_outputs(Graph& graph, llvm::ArrayRef<Output> outputs) {
  for (const Output& output : outputs) {
    if (output.name == "loss" && graph.type(output.value).elements() == 1) continue;
    graph.outputs.push_back(output);
  }
}

int64_t transient_bytes(const Plan& plan) {
  const Arena& arena = plan.arenas.front();
  return arena.bytes - arena.persistent_bytes;
}

llvm::StringSet<> states_on_host(const Plan& plan) {
  llvm::StringSet<> states;
  for (const PlanState& state : plan.states) {
    const Slot& slot = plan.slots[static_cast<size_t>(state.slot)];
    if (slot.space == MemorySpace::Host) states.insert(slot.name);
  }
  return states;
}

// The graph reads the running mean of each weight that has one in the place of the weight. Returns whether there are
// any. A rank's piece of a divided mean is not the whole that the graph reads.
bool read_means(Graph& graph, const Plan& plan) {
  bool has_means = false;
  for (const State& state : graph.states) {
    const std::string name = graph.value(state.value).name + ema_suffix.str();
    const std::optional<StoredState> mean = find_stored_state(plan, name);
    if (!mean || state.role != StateRole::Parameter) continue;
    const Type own = graph.type(state.value), &kept = mean->model_type;
    if (kept.shape != own.shape) continue;
    graph.rename(state.value, name);
    has_means = true;
    if (kept == own) continue;
    Builder b(graph, graph.first_node());
    const ValueId stand_in = b.emit("cast", {state.value}, {{"to", own.dtype}});
    graph.replace_uses(state.value, stand_in);
    graph.set_operand(graph.value(stand_in).producer, 0, state.value);
    graph.set_type(state.value, kept);
  }
  return has_means;
}

// Of the stage that lacks most.
int64_t excess_bytes(const Plan& plan) {
  int64_t most = std::numeric_limits<int64_t>::min();
  for (const Plan* stage : plan.stages())
    most = std::max(most, stage->promised_bytes() - stage->arenas.front().budget_bytes);
  return most;
}

std::vector<int64_t> persistent_bytes(const Plan& plan) {
  std::vector<int64_t> bytes;
  for (const Plan* stage : plan.stages()) bytes.push_back(stage->arenas.front().persistent_bytes);
  return bytes;
}

}  // namespace

Result<Graph> make_evaluation_graph(Graph forward, llvm::StringRef loss, const EvaluationRequest& request,
                                    PassManager passes) {
  const std::vector<Output> outputs = forward.outputs;
  if (Status s = attach_loss(forward, loss)) return s;
  append_model_outputs(forward, outputs);
  forward.name = evaluate_function.str();
  if (Result<bool> changed = passes.run(forward, inference_pipeline); !changed) return changed.takeError();
  if (Status s = clean_graph(forward, passes)) return s;
  if (Status s = add_metrics(forward, request.metrics)) return in_context("evaluation", std::move(s));
  return forward;
}

Result<const EvaluationPlanner::Variant*> EvaluationPlanner::variant(int64_t batch, const Plan& plan) {
  if (const auto known = variants_.find(batch); known != variants_.end()) return &known->second;
  TrainingRequest request = request_;
  request.batch = batch;
  // Ranks along the axis data evaluate samples of their own, and talk only where they have pieces of the weights.
  request.mesh[MeshAxis::Data] = 1;
  request.zero = 0;
  request.adapters.dropout = 0;
  Result<ForwardModel> forward =
      prepare_undivided({*model_.evaluation, model_.passes.quiet()}, request, devices_.preferences());
  if (!forward) return forward.takeError();
  if (forward->summary.batch == 0)
    return model_error("evaluation needs inputs that share a batch dimension, and the model has none");
  const int64_t samples = forward->summary.batch;
  const int64_t stages = plan.mesh[MeshAxis::Stage];
  const StagesOfStates owners = stages_of_states(plan);
  if (stages > 1) place_on_stages(forward->graph, owners, stages);
  if (plan.mesh.ranks() > 1) {
    if (Status s = divide_as_planned(forward->graph, plan.mesh, states_of_rank(plan))) return s;
    if (Result<bool> changed = forward->passes.run(forward->graph, "simplify, cse, dce"); !changed)
      return changed.takeError();
  }
  const bool of_mean = read_means(forward->graph, plan);
  if (read_as_stored(forward->graph, plan))
    if (Result<bool> changed = forward->passes.run(forward->graph, "simplify, cse, dce"); !changed)
      return changed.takeError();
  std::vector<Graph> graphs;
  if (stages > 1) {
    Result<std::vector<Graph>> made = graphs_of_stages(forward->graph, owners, stages);
    if (!made) return made.takeError();
    graphs = std::move(*made);
  } else {
    graphs.push_back(std::move(forward->graph));
  }
  Variant made{{}, samples, of_mean};
  for (size_t stage = 0; stage < graphs.size(); ++stage) {
    Result<Derived> derived = schedule_program(Program{{std::move(graphs[stage])}}, request, devices_.device(stage),
                                               devices_.catalog(stage), forward->passes);
    if (!derived) return derived.takeError();
    derived->draft.writers(0);
    made.drafts.push_back(std::move(derived->draft));
  }
  return &variants_.emplace(batch, std::move(made)).first->second;
}

Result<Plan> EvaluationPlanner::add(const Plan& plan, const Variant& variant) const {
  Plan first = plan;
  std::vector<Plan> later = std::move(first.later_stages);
  first.later_stages.clear();
  Result<Plan> grown = add_to_stage(first, variant, 0);
  if (!grown) return grown;
  for (Plan& stage : later) {
    Result<Plan> with = add_to_stage(stage, variant, static_cast<size_t>(stage.stage));
    if (!with) return with;
    grown->later_stages.push_back(std::move(*with));
  }
  return grown;
}

// States that wait on the host during a step do so here too, and come before their first reader.
Result<Plan> EvaluationPlanner::add_to_stage(const Plan& plan, const Variant& variant, size_t stage) const {
  PlanDraft draft = variant.drafts[stage];
  move_states_to_host(draft.program.functions.front(), draft.writers(0), states_on_host(plan));
  Result<Plan> grown = add_to_plan({.draft = draft, .budget_bytes = 0}, plan);
  if (!grown) return grown;
  PlanFunction& function = grown->functions.back();
  for (PlanOutput& output : function.outputs)
    output.use = use_of_output(output.name, grown->slots[static_cast<size_t>(output.slot)].type, variant.batch);
  grown->evaluation = {variant.batch, request_.evaluation.metrics, variant.of_mean};
  grown->decisions.push_back({"evaluate", "plan", "batch of " + std::to_string(variant.batch),
                              std::string(variant.of_mean ? "of the running mean of the weights; " : "") +
                                  "evaluation needs " + format_bytes(function.transient_bytes) +
                                  " above the states, training " + format_bytes(transient_bytes(plan))});
  return grown;
}

Result<Plan> EvaluationPlanner::with_evaluation(const Plan& plan) {
  int64_t batch = request_.evaluation.batch;
  if (batch == 0)
    batch =
        plan.mesh[MeshAxis::Data] > 1 ? rows_of_rank(plan.training.batch, plan.mesh[MeshAxis::Data]) : request_.batch;
  for (;;) {
    Result<const Variant*> found = variant(batch, plan);
    if (!found) return in_context("evaluation", found.takeError());
    Result<Plan> grown = add(plan, **found);
    if (!grown) return grown;
    batch = (*found)->batch / 2;
    bool is_small = true;
    const auto before = plan.stages(), after = grown->stages();
    for (size_t stage = 0; stage < before.size(); ++stage)
      is_small = is_small && after[stage]->functions.back().transient_bytes <= transient_bytes(*before[stage]);
    if (request_.evaluation.batch > 0 || is_small || batch == 0) return grown;
    // A batch that the exporter fixed may be all there is.
    if (Result<const Variant*> smaller = variant(batch, plan); !smaller) {
      llvm::consumeError(smaller.takeError());
      return grown;
    }
  }
}

Result<CompileResult> add_evaluation(CompileResult training, EvaluationPlanner& planner,
                                     llvm::function_ref<Result<CompileResult>(const Reserve& held_back)> search) {
  if (!training.fits) return training;
  const auto add_to_all = [&](CompileResult& result) -> Result<int64_t> {
    int64_t excess = 0;
    for (Plan* plan : result.plans()) {
      const auto is_held_back = [](const Reserve& each) { return each.name == reserve_name; };
      llvm::erase_if(plan->device.reserves, is_held_back);
      for (Plan& stage : plan->later_stages) llvm::erase_if(stage.device.reserves, is_held_back);
      Result<Plan> grown = planner.with_evaluation(*plan);
      if (!grown) return grown.takeError();
      excess = std::max(excess, excess_bytes(*grown));
      *plan = std::move(*grown);
    }
    return excess;
  };
  const std::vector<int64_t> trains_within = persistent_bytes(training.plan);
  Result<int64_t> excess = add_to_all(training);
  if (!excess) return excess.takeError();
  if (*excess <= 0) return training;

  int64_t persistent = 0;
  const std::vector<int64_t> evaluates_within = persistent_bytes(training.plan);
  for (size_t stage = 0; stage < trains_within.size(); ++stage)
    persistent = std::max(persistent, evaluates_within[stage] - trains_within[stage]);
  if (persistent > 0) {
    Result<CompileResult> again = search({reserve_name.str(), persistent});
    if (!again) return again;
    if (!again->fits) return again;
    excess = add_to_all(*again);
    if (!excess) return excess.takeError();
    if (*excess <= 0) return again;
    training = std::move(*again);
  }
  const auto stages = training.plan.stages();
  const Plan& most = **std::max_element(stages.begin(), stages.end(), [](const Plan* a, const Plan* b) {
    return a->promised_bytes() - a->arenas.front().budget_bytes < b->promised_bytes() - b->arenas.front().budget_bytes;
  });
  return budget_error("evaluation of " + llvm::Twine(training.plan.evaluation.batch) + " samples needs " +
                      format_bytes(most.promised_bytes()) + ", the budget is " +
                      format_bytes(most.arenas.front().budget_bytes) + "; a smaller --evaluate-batch needs less");
}

}  // namespace plimsoll
