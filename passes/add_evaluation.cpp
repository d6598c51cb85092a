#include "passes/add_evaluation.h"

#include "ir/support/units.h"
#include "passes/compile.h"
#include "passes/evaluate/metrics.h"
#include "passes/lower_to_plan.h"
#include "passes/offload/offload_rewrite.h"
#include "passes/partition/divide_as_planned.h"
#include "passes/pipelines.h"
#include "passes/train/optimizer_update.h"
#include "passes/train/training_step.h"

// The training is planned first, as if there were no evaluation; then evaluation gets a batch that fits into the bytes
// a step has anyway. So asking for evaluation changes nothing about the step.

namespace plimsoll {
namespace {

constexpr llvm::StringLiteral reserve_name = "constants of evaluation";

llvm::StringMap<OwnState> states_of_rank(const Plan& plan) {
  llvm::StringMap<OwnState> states;
  for (const PlanState& state : plan.states) {
    const Slot& slot = plan.slots[static_cast<size_t>(state.slot)];
    states.try_emplace(slot.name, OwnState{slot.type.shape, state.divisions});
  }
  return states;
}

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

const PlanState* find_state(const Plan& plan, llvm::StringRef name) {
  const auto found = llvm::find_if(
      plan.states, [&](const PlanState& state) { return plan.slots[static_cast<size_t>(state.slot)].name == name; });
  return found == plan.states.end() ? nullptr : &*found;
}

// The graph reads the running mean of each weight that has one in the place of the weight. Returns whether there are
// any. A rank's piece of a divided mean is not the whole that the graph reads.
bool read_means(Graph& graph, const Plan& plan) {
  bool has_means = false;
  for (const State& state : graph.states) {
    const std::string name = graph.value(state.value).name + ema_suffix.str();
    const PlanState* mean = find_state(plan, name);
    if (!mean || state.role != StateRole::Parameter) continue;
    const Type own = graph.type(state.value), &kept = plan.slots[static_cast<size_t>(mean->slot)].type;
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

int64_t excess_bytes(const Plan& plan) { return plan.promised_bytes() - plan.arenas.front().budget_bytes; }

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
      prepare_undivided({*model_.evaluation, model_.passes.quiet()}, request, catalog_.preferences());
  if (!forward) return forward.takeError();
  if (forward->summary.batch == 0)
    return model_error("evaluation needs inputs that share a batch dimension, and the model has none");
  const int64_t samples = forward->summary.batch;
  if (plan.mesh.ranks() > 1) {
    if (Status s = divide_as_planned(forward->graph, plan.mesh, states_of_rank(plan))) return s;
    if (Result<bool> changed = forward->passes.run(forward->graph, "simplify, cse, dce"); !changed)
      return changed.takeError();
  }
  const bool of_mean = read_means(forward->graph, plan);
  Result<Derived> derived = schedule_program(Program{{std::move(forward->graph)}}, device_, catalog_, forward->passes);
  if (!derived) return derived.takeError();
  derived->draft.writers(0);
  return &variants_.emplace(batch, Variant{std::move(derived->draft), samples, of_mean}).first->second;
}

// States that wait on the host during a step do so here too, and come before their first reader.
Result<Plan> EvaluationPlanner::add(const Plan& plan, const Variant& variant) const {
  PlanDraft draft = variant.draft;
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
    batch = plan.mesh[MeshAxis::Data] > 1 ? plan.training.batch / plan.mesh[MeshAxis::Data] : request_.batch;
  for (;;) {
    Result<const Variant*> found = variant(batch, plan);
    if (!found) return in_context("evaluation", found.takeError());
    Result<Plan> grown = add(plan, **found);
    if (!grown) return grown;
    batch = (*found)->batch / 2;
    const bool is_small = grown->functions.back().transient_bytes <= transient_bytes(plan);
    if (request_.evaluation.batch > 0 || is_small || batch == 0) return grown;
    // A batch that the exporter fixed may be all there is.
    if (Result<const Variant*> smaller = variant(batch, plan); !smaller) {
      llvm::consumeError(smaller.takeError());
      return grown;
    }
  }
}

Result<CompileResult> add_evaluation(CompileResult training, EvaluationPlanner& planner,
                                     const DeviceDescription& device,
                                     llvm::function_ref<Result<CompileResult>(const DeviceDescription&)> search) {
  if (!training.fits) return training;
  const auto add_to_all = [&](CompileResult& result) -> Result<int64_t> {
    int64_t excess = 0;
    for (Plan* plan : result.plans()) {
      llvm::erase_if(plan->device.reserves, [](const Reserve& each) { return each.name == reserve_name; });
      Result<Plan> grown = planner.with_evaluation(*plan);
      if (!grown) return grown.takeError();
      excess = std::max(excess, excess_bytes(*grown));
      *plan = std::move(*grown);
    }
    return excess;
  };
  const int64_t trains_within = training.plan.arenas.front().persistent_bytes;
  Result<int64_t> excess = add_to_all(training);
  if (!excess) return excess.takeError();
  if (*excess <= 0) return training;

  const int64_t persistent = training.plan.arenas.front().persistent_bytes - trains_within;
  DeviceDescription smaller = device;
  smaller.reserves.push_back({reserve_name.str(), persistent});
  if (persistent > 0) {
    Result<CompileResult> again = search(smaller);
    if (!again) return again;
    if (!again->fits) return again;
    excess = add_to_all(*again);
    if (!excess) return excess.takeError();
    if (*excess <= 0) return again;
    training = std::move(*again);
  }
  return budget_error("evaluation of " + llvm::Twine(training.plan.evaluation.batch) + " samples needs " +
                      format_bytes(training.plan.promised_bytes()) + ", the budget is " +
                      format_bytes(training.plan.arenas.front().budget_bytes) +
                      "; a smaller --evaluate-batch needs less");
}

}  // namespace plimsoll
