#include "passes/derive_program.h"

#include "passes/analysis/index_inputs.h"
#include "passes/partition/divide_batch.h"
#include "passes/partition/resize_batch.h"
#include "passes/pipelines.h"
#include "passes/target/precision_rules.h"
#include "passes/train/adapter_targets.h"
#include "passes/train/exported_adapters.h"
#include "passes/train/optimizer_settings.h"
#include "passes/train/split_batch.h"
#include "passes/train/training_step.h"
#include "passes/train/update_rules.h"

// What depends on the forward graph alone is done once; a program is derived of it as it is, and for each way to split
// its batch.

namespace plimsoll {
namespace {

// It is tensor cores that want channels last, and plain f32 keeps away from them.
bool wants_channels_last(const Graph& graph, const TrainingRequest& request, const KernelPreferences& preferences) {
  if (request.layout != ImageLayout::Auto) return request.layout == ImageLayout::ChannelsLast;
  if (!preferences.channels_last) return false;
  if (request.precision != "exported") return request.precision != "fp32";
  return llvm::any_of(graph.order(), [&](NodeId id) {
    const Node& node = graph.node(id);
    return node.op->name == "conv" && is_16_bit_float(graph.type(node.operands[0]).dtype);
  });
}

TrainingSummary summarise(const TrainingRequest& request, const Graph& forward) {
  const OptimizerSpec& o = request.optimizer;
  TrainingSummary summary;
  summary.loss = forward.value(forward.outputs.front().value).name;
  summary.asked_loss = request.loss;
  summary.optimizer = optimizer_name(o.kind).str();
  summary.groups = request.groups;
  for (const OptimizerSetting& setting : optimizer_settings)
    if (setting.applies_to(o.kind)) summary.hyperparameters.push_back({setting.name.str(), o.*setting.value});
  if (has_nesterov(o.kind)) summary.hyperparameters.push_back({"nesterov", o.nesterov ? 1.0 : 0.0});
  if (request.moments != Moments::F32)
    summary.hyperparameters.push_back({moment_bits_number.str(), request.moments == Moments::BF16 ? 16.0 : 8.0});
  if (request.master_weights == MasterWeights::Off)
    summary.hyperparameters.push_back({master_weights_number.str(), 0.0});
  if (request.ema > 0) summary.hyperparameters.push_back({"ema", request.ema});
  if (request.clip_grad_value > 0) summary.hyperparameters.push_back({"clip_grad_value", request.clip_grad_value});
  if (request.layer_rate != 1) summary.hyperparameters.push_back({"layer_rate", request.layer_rate});
  if (request.scales_loss()) summary.hyperparameters.push_back({"loss_scale", request.first_loss_scale});
  summary.accumulate = request.accumulate;
  summary.clip_grad_norm = request.clip_grad_norm;
  summary.precision = request.precision;
  Result<BatchInputs> batch = find_batch(forward);
  if (batch)
    summary.batch = batch->samples;
  else
    llvm::consumeError(batch.takeError());
  return summary;
}

bool trains_adapters(const Graph& graph) {
  return llvm::any_of(graph.states, [](const State& state) {
    return state.trained && parse_adapter_weight(state.init.source).has_value();
  });
}

}  // namespace

void note_untrained(const Graph& forward, const Program& program, PassManager& passes) {
  const Graph& update = program.functions.back();
  for (const State& state : forward.states) {
    if (!state.trained) continue;
    const std::string& name = forward.value(state.value).name;
    bool reached = llvm::any_of(
        update.gradients, [&](const StateGradient& gradient) { return update.value(gradient.state).name == name; });
    if (!reached) passes.decide({"train", name, "not updated", "the loss does not depend on it"});
  }
}

// What leaves the region may be read by nobody: of mean losses, the weight.
Result<Program> make_program(const ForwardModel& forward, const SplitChoice& split, const TrainingRequest& request) {
  Graph graph = forward.graph;
  if (split.chunks == 1) return make_training_program(std::move(graph), request);
  Result<BatchSplit> done = split_batch(graph, split.from, split.chunks);
  if (!done) return done.takeError();
  Result<Program> program = make_training_program(std::move(graph), request, done->sample_weight);
  if (program) run_chunks_in_order(program->functions.front(), *done);
  return program;
}

Result<ForwardModel> prepare_undivided(CleanModel model, const TrainingRequest& request,
                                       const KernelPreferences& preferences) {
  ForwardModel forward{std::move(model.graph), {}, std::move(model.passes)};
  Graph& graph = forward.graph;
  PassManager& passes = forward.passes;
  if (Status s = check_precision(graph, request)) return s;
  std::vector<IndexInput> index_inputs = find_index_inputs(graph);
  if (request.batch > 0 && !passes.stopped())
    if (Status s = resize_batch(graph, request.batch)) return s;
  Result<std::vector<ExportedAdapter>> exported = exported_adapters_of(graph);
  if (!exported) return exported.takeError();
  if (request.adapters.wanted() && !exported->empty())
    return usage_error("the model has adapters already, " + describe(graph, *exported) +
                       "; compile it without a rank to train them");
  if (request.adapters.wanted() && !passes.stopped())
    if (Result<bool> changed = passes.run(graph, adapter_pipeline(request.adapters)); !changed)
      return changed.takeError();
  const bool adapts_transposed = request.adapters.wanted() && adapts_transposed_weights(graph);
  if (wants_channels_last(graph, request, preferences))
    if (Result<bool> changed = passes.run(graph, layout_pipeline); !changed) return changed.takeError();
  if (passes.leave("clean")) return forward;

  passes.enter("train");
  if (!exported->empty()) passes.decide({"train", "adapters", "as exported", describe(graph, *exported)});
  if (Status s = select_trained(graph, request.train, request.freeze)) return s;
  if (Status s = check_update_rules(graph, request)) return s;
  const bool rounds =
      stored_precision(request.precision) == DType::BF16 && rounds_stochastically(request, request.optimizer.kind);
  const Narrowed narrowed = rounds ? Narrowed::Trained : Narrowed::Frozen;
  Result<bool> changed = passes.run(graph, forward_pipeline(request, preferences, narrowed));
  if (!changed) return changed.takeError();
  note_update_rules(graph, request, passes);
  forward.summary = summarise(request, graph);
  if (!exported->empty() && trains_adapters(graph)) describe_exported_adapters(forward.summary, *exported);
  if (request.adapters.wanted()) describe_adapters(forward.summary, request.adapters, adapts_transposed);
  forward.summary.index_inputs = std::move(index_inputs);
  return forward;
}

Result<ForwardModel> prepare_forward(CleanModel model, const TrainingRequest& request,
                                     const KernelPreferences& preferences) {
  Result<ForwardModel> forward = prepare_undivided(std::move(model), request, preferences);
  if (!forward || forward->passes.stopped()) return forward;
  return divide_forward(std::move(*forward), request, preferences);
}

Result<ForwardModel> divide_forward(ForwardModel undivided, const TrainingRequest& request,
                                    const KernelPreferences& preferences) {
  Result<bool> changed = undivided.passes.run(undivided.graph, partition_pipeline(request, preferences));
  if (!changed) return changed.takeError();
  return undivided;
}

Result<Derived> derive_program(const ForwardModel& forward, const SplitChoice& split, const TrainingRequest& request,
                               const DeviceDescription& device, const KernelCatalog& catalog, PassManager passes,
                               PlainForm form) {
  Result<Program> program = make_program(forward, split, request);
  if (!program) return program.takeError();
  note_untrained(forward.graph, *program, passes);
  if (split.chunks == 1)
    for (Graph& function : program->functions)
      if (Result<bool> changed = passes.run(function, whole_batch_pipeline); !changed) return changed.takeError();
  return schedule_program(std::move(*program), request, device, catalog, std::move(passes), form);
}

Result<Derived> schedule_program(Program program, const TrainingRequest& request, const DeviceDescription& device,
                                 const KernelCatalog& catalog, PassManager passes, PlainForm form) {
  Derived derived{PlanDraft(std::move(program), device, catalog), std::move(passes)};
  for (Graph& function : derived.draft.program.functions) {
    Result<bool> changed = derived.passes.run(
        function, step_pipeline(request, catalog.preferences(), preferred_moments(catalog), form.joins_launches));
    if (!changed) return changed.takeError();
  }
  if (Result<bool> changed = run_steps(derived.passes, derived.draft, "sum-gathered, share-sorts, dce"); !changed)
    return changed.takeError();
  if (Result<bool> changed = run_steps(derived.passes, derived.draft, fuse_pipeline); !changed)
    return changed.takeError();
  if (form.keeps_copies)
    if (Result<bool> changed = run_steps(derived.passes, derived.draft, "keep-copies, order-weights, dce"); !changed)
      return changed.takeError();
  if (form.joins_launches)
    if (Result<bool> changed = run_steps(derived.passes, derived.draft, "join-gelus"); !changed)
      return changed.takeError();
  if (derived.passes.leave("train")) return derived;

  derived.passes.enter("fit");
  Result<bool> changed = run_steps(derived.passes, derived.draft, schedule_pipeline);
  if (!changed) return changed.takeError();
  derived.passes.leave("fit");
  return derived;
}

}  // namespace plimsoll
