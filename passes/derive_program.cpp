#include "passes/derive_program.h"

#include "ir/support/units.h"
#include "ir/verify.h"
#include "passes/analysis/buffer_assignment.h"
#include "passes/pass/pass_runner.h"
#include "passes/schedule/schedule.h"
#include "passes/target/check_precision.h"
#include "passes/train/resize_batch.h"
#include "passes/train/split_batch.h"
#include "passes/train/training_step.h"

// What depends on the forward graph alone is done once; a program is derived of it as it is, and for each way to split
// its batch.

namespace plimsoll {
namespace {

constexpr llvm::StringLiteral fuse_pipeline = "fuse-batch-norms";
constexpr llvm::StringLiteral train_pipeline =
    "simplify, fold-casts-into-reductions, simplify, cse, dce, fuse-batch-norms, save-pool-indices, fuse-addends, dce";
constexpr llvm::StringLiteral epilogue_pipeline = "fuse-epilogues, dce";
constexpr llvm::StringLiteral layout_pipeline =
    "channels-last, dce, move-transposes, fold-constants, simplify, cse, dce";

// It is tensor cores that want channels last, and plain f32 keeps away from them.
bool wants_channels_last(const Graph& graph, const TrainingRequest& request, const KernelCatalog& catalog) {
  if (request.layout != ImageLayout::Auto) return request.layout == ImageLayout::ChannelsLast;
  if (!catalog.preferences().channels_last) return false;
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
    case OptimizerKind::Sgd:
      return "sgd";
    case OptimizerKind::Adam:
      return "adam";
    case OptimizerKind::AdamW:
      return "adamw";
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
    summary.hyperparameters.insert(
        summary.hyperparameters.end(),
        {{"momentum", o.momentum}, {"dampening", o.dampening}, {"nesterov", o.nesterov ? 1.0 : 0.0}});
  else
    summary.hyperparameters.insert(summary.hyperparameters.end(),
                                   {{"beta1", o.beta1}, {"beta2", o.beta2}, {"eps", o.eps}});
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
    bool reached = llvm::any_of(
        update.gradients, [&](const StateGradient& gradient) { return update.value(gradient.state).name == name; });
    if (!reached) decisions.push_back({"train", name, "not updated", "the loss does not depend on it"});
  }
}

Status insert_casts(Graph& graph, const TrainingRequest& request, PassRunner& passes,
                    std::vector<Decision>& decisions) {
  if (request.precision == "tf32")
    decisions.push_back(
        {"insert-casts", "plan", "tf32", "no casts: products may round f32 operands to 10 bits; the CPU does not"});
  if (!is_mixed(request.precision)) return Status::success();
  Pipeline pipeline{{{find_pass("insert-casts"), {{"to", request.precision}, {"rules", request.precision_rules}}}}};
  Result<bool> changed = passes.run(graph, pipeline);
  return changed ? Status::success() : changed.takeError();
}

// Classes are padded to what the backend's products like.
Status pad_vocabulary(Graph& graph, const KernelCatalog& catalog, PassRunner& passes) {
  const int64_t multiple = catalog.preferences().product_multiple;
  if (multiple <= 1 || passes.stopped()) return Status::success();
  Pipeline pipeline{{{find_pass("pad-vocabulary"), {{"multiple", std::to_string(multiple)}}}}};
  Result<bool> changed = passes.run(graph, pipeline);
  return changed ? Status::success() : changed.takeError();
}

Status schedule_program(Derived& derived, const KernelCatalog& catalog) {
  for (Graph& function : derived.program.functions) {
    derived.writers.push_back(make_updates_writable(function));
    Result<ScheduleReport> report = schedule(function, derived.writers.back(), catalog);
    if (!report) return report.takeError();
    derived.decisions.push_back(
        {"schedule", function.name,
         report->peak_after_bytes < report->peak_before_bytes ? "reordered" : "derived order kept",
         "transient peak " + format_bytes(report->peak_before_bytes) + " as derived, " +
             format_bytes(report->peak_after_bytes) + " as ordered"});
    derived.other_orders.push_back(std::move(report->early_updates));
    if (Status s = verify(function)) return s;
  }
  return Status::success();
}

// Its forward part is `forward`, split where that is asked for. What leaves the region may be read by nobody: of mean
// losses, the weight.
Result<Program> make_program(const ForwardModel& forward, const SplitChoice& split, const TrainingRequest& request) {
  Graph graph = forward.graph;
  if (split.parts == 1) return make_training_program(std::move(graph), request);
  Result<BatchSplit> done = split_batch(graph, split.from, split.parts);
  if (!done) return done.takeError();
  Result<Program> program = make_training_program(std::move(graph), request, done->sample_weight);
  if (program) run_parts_in_turn(program->functions.front(), *done);
  return program;
}

}  // namespace

Result<ForwardModel> prepare_forward(CleanModel model, const TrainingRequest& request, const KernelCatalog& catalog,
                                     const CompileHooks& hooks) {
  ForwardModel forward{std::move(model.graph), {}, std::move(model.decisions)};
  PassRunner passes(hooks, forward.decisions, model.passes_run, model.stopped);
  const auto done = [&](bool stopped) {
    forward.passes_run = passes.runs() - hooks.pipeline.runs_before;
    forward.stopped = stopped;
    return std::move(forward);
  };
  if (Status s = check_precision(forward.graph, request)) return s;
  if (request.batch > 0 && !passes.stopped())
    if (Status s = rebatch(forward.graph, request.batch)) return s;
  if (Status s = choose_layout(forward.graph, request, catalog, passes)) return s;
  if (passes.stopped_after("clean")) return done(true);

  enter(hooks, "train");
  if (Status s = select_trained(forward.graph, request.train, request.freeze)) return s;
  if (Status s = pad_vocabulary(forward.graph, catalog, passes)) return s;
  if (Status s = insert_casts(forward.graph, request, passes, forward.decisions)) return s;
  if (Result<bool> fused = passes.run(forward.graph, fuse_pipeline); !fused) return fused.takeError();
  forward.summary = summarise(request, forward.graph);
  return done(passes.stopped());
}

Result<Derived> derive_program(const ForwardModel& forward, const SplitChoice& split, const TrainingRequest& request,
                               const KernelCatalog& catalog, const CompileHooks& hooks) {
  Derived derived;
  PassRunner passes(hooks, derived.decisions, forward.passes_run);
  Result<Program> program = make_program(forward, split, request);
  if (!program) return program.takeError();
  note_untrained(forward.graph, *program, derived.decisions);
  for (Graph& function : program->functions) {
    Result<bool> changed = passes.run(function, train_pipeline);
    if (changed && catalog.preferences().product_epilogues) changed = passes.run(function, epilogue_pipeline);
    if (!changed) return changed.takeError();
  }
  derived.program = std::move(*program);
  derived.stopped = passes.stopped_after("train");
  if (derived.stopped) return derived;

  enter(hooks, "fit");
  if (Status s = schedule_program(derived, catalog)) return s;
  derived.stopped = passes.stopped_after("fit");
  return derived;
}

}  // namespace plimsoll
