#include "passes/compile.h"

#include "ir/nearest.h"
#include "ir/plan/check.h"
#include "ir/units.h"
#include "ir/verify.h"
#include "passes/check_precision.h"
#include "passes/fit_budget.h"
#include "passes/rebatch.h"
#include "passes/schedule.h"
#include "passes/storage.h"
#include "passes/training_step.h"

namespace plimsoll {

const llvm::StringLiteral clean_pipeline =
    "fold-constants, simplify, share-equal-nodes, remove-dead-nodes, recover-activations, recover-norms, recover-losses, "
    "remove-dead-nodes, recover-linear, remove-dead-nodes, recover-rotary, recover-attention, remove-dead-nodes";
const llvm::StringLiteral settle_pipeline = "move-layout-changes, simplify, remove-dead-nodes";
const llvm::StringLiteral finish_pipeline =
    "recover-linear, recover-attention, recover-losses, simplify, recover-split, pack-attention, share-equal-nodes, remove-dead-nodes";
constexpr llvm::StringLiteral fuse_pipeline = "fuse-batch-norms";
constexpr llvm::StringLiteral train_pipeline =
    "simplify, round-sums-once, simplify, share-equal-nodes, remove-dead-nodes, fuse-batch-norms, keep-pool-choices, absorb-sums, remove-dead-nodes";
constexpr llvm::StringLiteral epilogue_pipeline = "fuse-epilogues, remove-dead-nodes";
constexpr llvm::StringLiteral layout_pipeline =
    "channels-last, move-layout-changes, fold-constants, simplify, share-equal-nodes, remove-dead-nodes";
constexpr int settle_rounds = 16;  // exports settle in five; the bound only guards against rules that undo each other

namespace {

void enter(const CompileHooks& hooks, llvm::StringRef phase) {
  if (hooks.on_phase) hooks.on_phase(phase);
}

// Runs pipelines one after another as if they were one: dumps count on, decisions add up.
class PassRunner {
 public:
  PassRunner(const CompileHooks& hooks, std::vector<Decision>& decisions, size_t runs_before = 0, bool stopped = false)
      : options_(hooks.pipeline), decisions_(decisions), stopped_(stopped) {
    options_.runs_before += runs_before;
  }

  // Did anything change? Nothing does once stopped.
  Result<bool> run(Graph& graph, llvm::StringRef text) {
    Result<Pipeline> pipeline = parse_pipeline(text);
    if (!pipeline) return pipeline.takeError();
    return run(graph, *pipeline);
  }

  Result<bool> run(Graph& graph, const Pipeline& pipeline) {
    if (stopped_) return false;
    Result<PipelineReport> report = run_pipeline(graph, pipeline, options_);
    if (!report) return report.takeError();
    options_.runs_before += report->runs.size();
    stopped_ = !report->runs.empty() && report->runs.back().pass == options_.stop_after;
    decisions_.insert(decisions_.end(), report->decisions.begin(), report->decisions.end());
    return llvm::any_of(report->runs, [](const PassRun& run) { return run.changed; });
  }

  bool stopped() const { return stopped_; }
  size_t runs() const { return options_.runs_before; }
  // Asked at the end of a phase: is there nothing more to do?
  bool stopped_after(llvm::StringRef phase) const { return stopped_ || options_.stop_after == phase; }

 private:
  PipelineOptions options_;
  std::vector<Decision>& decisions_;
  bool stopped_;
};

Status clean(Graph& graph, PassRunner& passes) {
  Result<bool> changed = passes.run(graph, clean_pipeline);
  for (int round = 0; round < settle_rounds && changed && *changed; ++round) changed = passes.run(graph, settle_pipeline);
  if (changed) changed = passes.run(graph, finish_pipeline);
  return changed ? Status::success() : changed.takeError();
}

// It is tensor cores that want channels last, and plain f32 keeps away from them.
bool wants_channels_last(const Graph& graph, const TrainingRequest& request, const KernelCatalog& catalog) {
  if (request.layout != ImageLayout::Auto) return request.layout == ImageLayout::ChannelsLast;
  if (!catalog.prefers_channels_last()) return false;
  if (request.precision != "exported") return request.precision != "fp32";
  return llvm::any_of(graph.order(), [&](NodeId id) {
    const Node& node = graph.node(id);
    return node.op->name == "conv" && is_16_bit_float(graph.type(node.operands[0]).dtype);
  });
}

Status choose_layout(Graph& graph, const TrainingRequest& request, const KernelCatalog& catalog, PassRunner& passes) {
  if (!wants_channels_last(graph, request, catalog)) return Status::success();
  Result<bool> changed = passes.run(graph, layout_pipeline);
  return changed ? Status::success() : changed.takeError();
}

const char* optimizer_name(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::Sgd: return "sgd";
    case OptimizerKind::Adam: return "adam";
    case OptimizerKind::AdamW: return "adamw";
  }
  return "";
}

TrainingSummary summarise(const TrainingRequest& request, const Graph& forward) {
  const OptimizerSpec& o = request.optimizer;
  TrainingSummary summary;
  summary.loss = forward.value(forward.outputs.front().value).name;
  summary.optimizer = optimizer_name(o.kind);
  summary.hyperparameters = {{"lr", o.learning_rate}, {"weight_decay", o.weight_decay}};
  if (o.kind == OptimizerKind::Sgd)
    summary.hyperparameters.insert(summary.hyperparameters.end(),
                                   {{"momentum", o.momentum}, {"dampening", o.dampening}, {"nesterov", o.nesterov ? 1.0 : 0.0}});
  else
    summary.hyperparameters.insert(summary.hyperparameters.end(), {{"beta1", o.beta1}, {"beta2", o.beta2}, {"eps", o.eps}});
  summary.accumulate = request.accumulate;
  summary.clip_grad_norm = request.clip_grad_norm;
  summary.precision = request.precision;
  for (ValueId input : forward.inputs) {
    const Shape& shape = forward.type(input).shape;
    if (shape.empty()) continue;
    if (summary.batch != 0 && summary.batch != shape[0]) return summary.batch = 0, summary;
    summary.batch = shape[0];
  }
  return summary;
}

void note_untrained(const Graph& forward, const Program& program, std::vector<Decision>& decisions) {
  const Graph& update = program.functions.back();
  for (const State& state : forward.states) {
    if (!state.trained) continue;
    const std::string& name = forward.value(state.value).name;
    bool reached = llvm::any_of(update.gradients, [&](const StateGradient& gradient) { return update.value(gradient.state).name == name; });
    if (!reached) decisions.push_back({"train", name, "not updated", "the loss does not depend on it"});
  }
}

Status insert_casts(Graph& graph, const TrainingRequest& request, PassRunner& passes, std::vector<Decision>& decisions) {
  if (request.precision == "tf32")
    decisions.push_back({"insert-casts", "plan", "tf32", "no casts: products may round f32 operands to 10 bits; the CPU does not"});
  if (!is_mixed(request.precision)) return Status::success();
  Pipeline pipeline{{{find_pass("insert-casts"), {{"to", request.precision}, {"rules", request.precision_rules}}}}};
  Result<bool> changed = passes.run(graph, pipeline);
  return changed ? Status::success() : changed.takeError();
}

// Classes are padded to what the backend's products like.
Status pad_classes(Graph& graph, const KernelCatalog& catalog, PassRunner& passes) {
  if (catalog.product_multiple() <= 1 || passes.stopped()) return Status::success();
  Pipeline pipeline{{{find_pass("pad-classes"), {{"multiple", std::to_string(catalog.product_multiple())}}}}};
  Result<bool> changed = passes.run(graph, pipeline);
  return changed ? Status::success() : changed.takeError();
}

// By function, as storage and fit_budget want them.
struct Schedules {
  std::vector<std::vector<NodeId>> writers, other_orders;
};

Result<Schedules> schedule_program(Program& program, const KernelCatalog& catalog, std::vector<Decision>& decisions) {
  Schedules schedules;
  for (Graph& function : program.functions) {
    schedules.writers.push_back(make_updates_writable(function));
    Result<ScheduleReport> report = schedule(function, schedules.writers.back(), catalog);
    if (!report) return report.takeError();
    decisions.push_back({"schedule", function.name,
                         report->peak_after_bytes < report->peak_before_bytes ? "reordered" : "derived order kept",
                         "transient peak " + format_bytes(report->peak_before_bytes) + " as derived, " +
                             format_bytes(report->peak_after_bytes) + " as ordered"});
    schedules.other_orders.push_back(std::move(report->early_updates));
  }
  return schedules;
}

// A program on its way to a plan.
struct Derived {
  Program program;
  TrainingSummary summary;
  Schedules schedules;
  bool stopped = false;
};

Result<Derived> derive(CleanModel model, const TrainingRequest& request, const KernelCatalog& catalog, const CompileHooks& hooks,
                       std::vector<Decision>& decisions) {
  decisions = std::move(model.decisions);
  PassRunner passes(hooks, decisions, model.passes_run, model.stopped);
  Graph& forward = model.graph;
  Derived derived;
  auto stop = [&](Program program) {
    derived.program = std::move(program);
    derived.stopped = true;
    return std::move(derived);
  };
  if (Status s = check_precision(forward, request)) return s;
  if (request.batch > 0 && !passes.stopped())
    if (Status s = rebatch(forward, request.batch)) return s;
  if (Status s = choose_layout(forward, request, catalog, passes)) return s;
  if (passes.stopped_after("clean")) return stop({{std::move(forward)}});

  enter(hooks, "train");
  if (Status s = select_trained(forward, request.train, request.freeze)) return s;
  if (Status s = pad_classes(forward, catalog, passes)) return s;
  if (Status s = insert_casts(forward, request, passes, decisions)) return s;
  if (Result<bool> fused = passes.run(forward, fuse_pipeline); !fused) return fused.takeError();
  if (passes.stopped()) return stop({{std::move(forward)}});
  derived.summary = summarise(request, forward);
  Result<Program> program = make_training_program(forward, request);
  if (!program) return program.takeError();
  note_untrained(forward, *program, decisions);
  for (Graph& function : program->functions) {
    Result<bool> changed = passes.run(function, train_pipeline);
    if (changed && catalog.has_product_epilogues()) changed = passes.run(function, epilogue_pipeline);
    if (!changed) return changed.takeError();
  }
  if (passes.stopped_after("train")) return stop(std::move(*program));

  enter(hooks, "fit");
  Result<Schedules> schedules = schedule_program(*program, catalog, decisions);
  if (!schedules) return schedules.takeError();
  for (const Graph& function : program->functions)
    if (Status s = verify(function)) return s;
  if (passes.stopped_after("fit")) return stop(std::move(*program));
  derived.program = std::move(*program);
  derived.schedules = std::move(*schedules);
  return derived;
}

Status check_stop(llvm::StringRef name) {
  std::vector<llvm::StringRef> known{"clean", "train", "fit"};
  for (const PassInfo* pass : all_passes()) known.push_back(pass->name);
  if (llvm::is_contained(known, name)) return Status::success();
  std::vector<std::string> near = nearest_names(name, known, 1);
  return usage_error("--stop-after " + name + ": no pass or phase is called that" +
                     (near.empty() ? "" : "; did you mean " + near.front() + "?"));
}

}  // namespace

Status clean_graph(Graph& graph, const CompileHooks& hooks, std::vector<Decision>& decisions) {
  PassRunner passes(hooks, decisions);
  return clean(graph, passes);
}

Result<CleanModel> clean_model(Graph forward, llvm::StringRef loss, const CompileHooks& hooks) {
  enter(hooks, "clean");
  CleanModel model{std::move(forward)};
  PassRunner passes(hooks, model.decisions);
  if (Status s = attach_loss(model.graph, loss)) return s;
  if (Status s = clean(model.graph, passes)) return s;
  model.passes_run = passes.runs() - hooks.pipeline.runs_before;
  model.stopped = passes.stopped();
  return model;
}

Result<Program> compile_until(Graph forward, const TrainingRequest& request, const KernelCatalog& catalog, const CompileHooks& hooks) {
  if (Status s = check_stop(hooks.pipeline.stop_after)) return s;
  Result<CleanModel> model = clean_model(std::move(forward), request.loss, hooks);
  if (!model) return model.takeError();
  std::vector<Decision> decisions;
  Result<Derived> derived = derive(std::move(*model), request, catalog, hooks, decisions);
  if (!derived) return derived.takeError();
  if (!derived->stopped) return usage_error("--stop-after " + hooks.pipeline.stop_after + ": the pass is not run");
  return std::move(derived->program);
}

Result<Plan> compile_training(Graph forward, const TrainingRequest& request, const DeviceDescription& device,
                              const KernelCatalog& catalog, const CompileHooks& hooks) {
  CompileHooks whole = hooks;
  whole.pipeline.stop_after.clear();
  Result<CleanModel> model = clean_model(std::move(forward), request.loss, whole);
  return model ? compile_training(std::move(*model), request, device, catalog, whole) : model.takeError();
}

Result<Plan> compile_training(CleanModel model, const TrainingRequest& request, const DeviceDescription& device, const KernelCatalog& catalog,
                              const CompileHooks& hooks) {
  CompileHooks whole = hooks;
  whole.pipeline.stop_after.clear();
  std::vector<Decision> decisions;
  Result<Derived> derived = derive(std::move(model), request, catalog, whole, decisions);
  if (!derived) return derived.takeError();

  enter(hooks, "lay out");
  FitOptions fit;
  fit.recompute = request.recompute;
  fit.offload = request.offload;
  fit.search_seconds *= request.effort;
  fit.training = std::move(derived->summary);
  fit.other_orders = derived->schedules.other_orders;
  fit.on_refused = hooks.on_refused;
  LoweringInput input{derived->program, derived->schedules.writers, device, catalog, request.budget_bytes, request.host_budget_bytes};
  input.placement_seconds *= request.effort;
  if (hooks.on_front)
    if (Status s = budget_front(input, fit, hooks.on_front)) return s;
  Result<Plan> plan = fit_budget(input, fit);
  if (!plan) return plan.takeError();
  plan->decisions.insert(plan->decisions.begin(), decisions.begin(), decisions.end());
  if (Status s = check_plan(*plan)) return s;
  return plan;
}

}  // namespace plimsoll
