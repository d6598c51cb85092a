#include "frontend/api/reference_step.h"

#include "ir/builder.h"
#include "ir/kept_copies.h"
#include "ir/plan/adapters.h"
#include "passes/compile.h"
#include "passes/partition/resize_batch.h"
#include "passes/train/optimizer_settings.h"
#include "passes/train/training_step.h"
#include "runtime/packed_weights.h"

#include "llvm/ADT/StringSet.h"
#include "llvm/Support/Regex.h"

namespace plimsoll {
namespace {

bool updates_buffers(const Plan& plan) {
  llvm::StringSet<> buffers;
  for (const PlanState& state : plan.states)
    if (state.role == StateRole::Buffer) buffers.insert(plan.slots[static_cast<size_t>(state.slot)].name);
  for (const PlanFunction& function : plan.functions)
    for (const PlanUpdate& update : function.updates)
      if (buffers.contains(plan.slots[static_cast<size_t>(update.state)].name)) return true;
  return false;
}

// Regular expressions for exactly these names. One for all of them would have more parts than an expression may have.
std::vector<std::string> exactly(llvm::ArrayRef<std::string> names) {
  std::vector<std::string> patterns;
  for (const std::string& name : names) patterns.push_back("^" + llvm::Regex::escape(name) + "$");
  return patterns;
}

double hyperparameter(const TrainingSummary& training, llvm::StringRef name, double otherwise) {
  for (const auto& [known, value] : training.hyperparameters)
    if (known == name) return value;
  return otherwise;
}

OptimizerSpec optimizer_of(const TrainingSummary& training) {
  OptimizerSpec spec;
  for (size_t kind = 0; kind < std::size(optimizer_names); ++kind)
    if (training.optimizer == optimizer_names[kind]) spec.kind = static_cast<OptimizerKind>(kind);
  for (const OptimizerSetting& setting : optimizer_settings)
    spec.*setting.value = hyperparameter(training, setting.name, spec.*setting.value);
  spec.nesterov = hyperparameter(training, "nesterov", 0) != 0;
  return spec;
}

void fill(const TensorView& view, double value) {
  for (int64_t i = 0; i < view.elements(); ++i) view.set(i, value);
}

// First values of the states that `states` does not have yet, as a session makes them.
Status add_first_values(const Graph& graph, const StepStart& start, NamedTensors& states) {
  for (const State& state : graph.states) {
    const Value& value = graph.value(state.value);
    if (states.count(value.name)) continue;
    Tensor tensor(value.type);
    if (state.init.kind == StateInit::Kind::Weights) {
      if (Status s = start.load(state.init.source, tensor.view())) return s;
    } else if (state.init.kind == StateInit::Kind::Fill) {
      fill(tensor.view(), state.init.fill);
    } else {
      const auto source = states.find(state.init.source);
      if (source == states.end())
        return model_error(value.name + " is made of " + state.init.source + ", which comes after it");
      const bool is_turned = state.init.kind == StateInit::Kind::TransposeOf;
      const int64_t rows = is_turned ? value.type.shape[0] : 1,
                    columns = value.type.elements() / std::max<int64_t>(rows, 1);
      for (int64_t i = 0; i < value.type.elements(); ++i)
        tensor.view().set(i, source->second.get(i % columns * rows + i / columns));
    }
    if (value.name == "rng") tensor.view().set_int(0, static_cast<int64_t>(start.seed));
    states.emplace(value.name, std::move(tensor));
  }
  return Status::success();
}

Bindings bindings_of(const Graph& graph, const NamedTensors& states, const NamedTensors& inputs) {
  Bindings bindings;
  for (const State& state : graph.states) bindings[state.value] = &states.at(graph.value(state.value).name);
  for (ValueId input : graph.inputs)
    if (const auto found = inputs.find(graph.value(input).name); found != inputs.end())
      bindings[input] = &found->second;
  return bindings;
}

void apply_updates(const Graph& graph, Evaluation& evaluation, NamedTensors& states) {
  for (size_t i = 0; i < graph.updates.size(); ++i)
    states[graph.value(graph.updates[i].state).name] = std::move(evaluation.updates[i]);
}

// The graph with its gradients as outputs behind its own.
Graph with_gradient_outputs(Graph graph) {
  for (const StateGradient& gradient : graph.gradients)
    graph.outputs.push_back({graph.value(gradient.state).name, gradient.value});
  return graph;
}

Tensor divided(const Tensor& tensor, double by) {
  Tensor result = tensor;
  for (int64_t i = 0; i < tensor.type().elements(); ++i) result.view().set(i, tensor.get(i) / by);
  return result;
}

double output_of(const Graph& graph, const Evaluation& evaluation, llvm::StringRef name, double otherwise) {
  for (size_t i = 0; i < graph.outputs.size(); ++i)
    if (graph.outputs[i].name == name) return evaluation.outputs[i].get(0);
  return otherwise;
}

}  // namespace

static AdapterRequest request_of(const PlannedAdapters& adapters) {
  AdapterRequest request{.rank = adapters.rank,
                         .alpha = adapters.alpha,
                         .rslora = adapters.rslora,
                         .dora = adapters.has_magnitudes(),
                         .dropout = adapters.dropout,
                         .root = adapters.root};
  for (const PlannedAdapter& each : adapters.modules) request.targets.push_back(llvm::Regex::escape(each.module));
  return request;
}

// The format of the plan's quantised weights, and the names of matrices that it left as they were.
static QuantizeRequest request_of(llvm::ArrayRef<PackedWeight> weights, const Plan& plan) {
  QuantizeRequest request;
  if (weights.empty()) return request;
  const PackedWeight& first = weights.front();
  request.format = first.format == "int4"       ? WeightFormat::Int4
                   : first.format == "int8"     ? WeightFormat::Int8
                   : first.format == "fp8"      ? WeightFormat::FP8
                   : first.scale_scales.empty() ? WeightFormat::NF4Single
                                                : WeightFormat::NF4;
  llvm::StringSet<> packed;
  for (const PackedWeight& each : weights) packed.insert(each.source);
  std::vector<std::string> others;
  for (const PlanState& state : plan.states)
    if (state.role == StateRole::Parameter && !is_kept_copy(state.role, state.init) &&
        !packed.contains(state.init.source))
      others.push_back(plan.slots[static_cast<size_t>(state.slot)].name);
  request.skip = exactly(others);
  return request;
}

TrainingRequest request_of(const Plan& plan) {
  TrainingRequest request;
  request.loss = plan.training.asked_loss;
  std::vector<std::string> trained, frozen;
  for (const PlanState& state : plan.states)
    if ((state.role == StateRole::Parameter && !is_kept_copy(state.role, state.init)) ||
        state.role == StateRole::Buffer)
      (state.trained ? trained : frozen).push_back(plan.slots[static_cast<size_t>(state.slot)].name);
  request.train = exactly(trained);
  request.freeze = exactly(frozen);
  request.quantize = request_of(packed_weights_of(plan), plan);
  if (const std::optional<PlannedAdapters> adapters = adapters_of(plan); adapters && !adapters->from_export)
    request.adapters = request_of(*adapters);
  request.optimizer = optimizer_of(plan.training);
  const double moment_bits = hyperparameter(plan.training, moment_bits_number, 32);
  request.moments = moment_bits == 8 ? Moments::EightBit : moment_bits == 16 ? Moments::BF16 : Moments::F32;
  if (hyperparameter(plan.training, master_weights_number, 1) == 0) request.master_weights = MasterWeights::Off;
  request.ema = hyperparameter(plan.training, "ema", request.ema);
  request.clip_grad_value = hyperparameter(plan.training, "clip_grad_value", request.clip_grad_value);
  request.first_loss_scale = hyperparameter(plan.training, "loss_scale", request.first_loss_scale);
  request.groups = plan.training.groups;
  request.layer_rate = hyperparameter(plan.training, "layer_rate", request.layer_rate);
  request.accumulate = plan.training.accumulate;
  request.clip_grad_norm = plan.training.clip_grad_norm;
  request.batch = plan.training.batch;
  request.precision = plan.training.precision;
  return request;
}

Result<Graph> import_model_of(const Plan& plan, const std::string& model_path, const TrainingRequest& request) {
  Result<Model> model = Model::read(model_path);
  if (!model) return model.takeError();
  ImportOptions options;
  options.dims.insert(plan.dims.begin(), plan.dims.end());
  options.freeze_norm = !updates_buffers(plan);
  Result<Graph> graph = import_model(*model, options);
  if (!graph) return in_context(model_path, graph.takeError());
  if (Status s = attach_loss(*graph, request.loss)) return in_context(model_path, std::move(s));
  if (request.batch > 0)
    if (Status s = resize_batch(*graph, request.batch)) return in_context(model_path, std::move(s));
  // Layers that adapters belong to, and whose weights are quantised, are those of the clean graph.
  PassManager passes;
  if (request.adapters.wanted() || request.quantize.format != WeightFormat::AsTrained)
    if (Status s = clean_graph(*graph, passes)) return in_context(model_path, std::move(s));
  if (Status s = add_adapters(*graph, request.adapters, passes)) return in_context(model_path, std::move(s));
  if (Status s = select_trained(*graph, request.train, request.freeze)) return in_context(model_path, std::move(s));
  if (Status s = quantize_weights(*graph, request, passes)) return in_context(model_path, std::move(s));
  return graph;
}

Result<Program> make_reference_program(Graph forward, const TrainingRequest& request) {
  return make_training_program(std::move(forward), request);
}

// What calls of the first function for all batches make: the loss, and the gradients of the last call.
static Result<StepResults> run_batches(const Program& program, const StepStart& start) {
  const Graph& of_model = program.functions.front();  // a gradient may have the name of its outputs
  const Graph step = with_gradient_outputs(of_model);
  StepResults results;
  if (Status s = add_first_values(step, start, results.states)) return s;
  double loss = 0, weight = 0;
  for (const NamedTensors& batch : start.batches) {
    Result<Evaluation> evaluation = evaluate(step, bindings_of(step, results.states, batch));
    if (!evaluation) return evaluation.takeError();
    const double own = output_of(of_model, *evaluation, "weight", 1);
    loss += own == 0 ? 0 : own * output_of(of_model, *evaluation, "loss", NAN);
    weight += own;
    const size_t first = step.outputs.size() - step.gradients.size();
    for (size_t i = first; i < step.outputs.size(); ++i)
      results.gradients[step.outputs[i].name] = std::move(evaluation->outputs[i]);
    apply_updates(step, *evaluation, results.states);
  }
  results.loss = loss / weight;
  results.weight = weight;
  return results;
}

Result<StepResults> run_reference_step(const Program& program, const StepStart& start) {
  Result<StepResults> results = run_batches(program, start);
  if (!results || program.functions.size() == 1) return results;
  const Graph& update = program.functions[1];
  if (Status s = add_first_values(update, start, results->states)) return s;
  for (const StateGradient& gradient : update.gradients)
    results->gradients[update.value(gradient.state).name] =
        divided(results->states.at(update.value(gradient.value).name), results->weight);
  Result<Evaluation> evaluation = evaluate(update, bindings_of(update, results->states, {}));
  if (!evaluation) return evaluation.takeError();
  apply_updates(update, *evaluation, results->states);
  return results;
}

Result<NamedTensors> run_reference_update(const Program& program, const StepStart& start, const NamedTensors& gradients,
                                          double weight) {
  Graph graph = program.functions.back();
  NamedTensors states, given;
  if (Status s = add_first_values(graph, start, states)) return s;
  for (const StateGradient& gradient : graph.gradients) {
    const std::string& name = graph.value(gradient.state).name;
    const auto found = gradients.find(name);
    if (found == gradients.end()) return model_error("the plan gives no gradient of " + name);
    const Type type = graph.type(gradient.value);
    const ValueId input = graph.add_input(name + ".given", type);
    Tensor sum(type);
    for (int64_t i = 0; i < type.elements(); ++i) sum.view().set(i, found->second.get(i) * weight);
    given.emplace(graph.value(input).name, std::move(sum));
    graph.replace_uses(gradient.value, input);
  }
  if (const auto counted = states.find("accumulated_weight"); counted != states.end())
    fill(counted->second.view(), weight);
  graph.outputs.clear();
  llvm::erase_if(graph.updates, [&](const Update& update) {
    const State* state = graph.find_state(update.state);
    return !(state->trained || state->role == StateRole::Optimizer);
  });
  PassManager passes;
  if (Result<bool> changed = passes.run(graph, "dce"); !changed) return changed.takeError();
  Result<Evaluation> evaluation = evaluate(graph, bindings_of(graph, states, given));
  if (!evaluation) return evaluation.takeError();
  NamedTensors updated;
  apply_updates(graph, *evaluation, updated);
  return updated;
}

Result<NamedTensors> start_values(const Graph& graph, const StepStart& start) {
  NamedTensors values;
  if (Status s = add_first_values(graph, start, values)) return s;
  for (ValueId input : graph.inputs)
    if (const auto found = start.batches.front().find(graph.value(input).name); found != start.batches.front().end())
      values.insert(*found);
  return values;
}

Result<NamedTensors> start_values(const Program& program, size_t function, const StepStart& start) {
  const Graph& graph = program.functions[function];
  if (function == 0) return start_values(graph, start);
  Result<StepResults> results = run_batches(program, start);
  if (!results) return results.takeError();
  if (Status s = add_first_values(graph, start, results->states)) return s;
  return std::move(results->states);
}

Result<NamedTensors> run_reference_values(const Graph& graph, const NamedTensors& given) {
  Result<Evaluation> evaluation = evaluate(graph, bindings_of(graph, given, given), Keep::EveryValue);
  if (!evaluation) return evaluation.takeError();
  NamedTensors values;
  for (NodeId id = graph.first_node(); id != NodeId::None; id = graph.next_node(id))
    for (ValueId result : graph.node(id).results)
      values.emplace(graph.value(result).name, std::move(evaluation->values[index_of(result)]));
  return values;
}

}  // namespace plimsoll
