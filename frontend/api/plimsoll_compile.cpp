#include "frontend/api/alternatives.h"
#include "frontend/api/check_model.h"
#include "frontend/api/choose_plan.h"
#include "frontend/api/fit.h"
#include "frontend/api/machine.h"
#include "frontend/api/merge_adapter.h"
#include "frontend/api/plimsoll_impl.h"
#include "frontend/api/request_ranges.h"
#include "passes/train/optimizer_settings.h"

#include <optional>

namespace plimsoll::api {
namespace {

// Every number of an optimizer, as the caller has it and as a job has it.
struct OptimizerNumber {
  double Optimizer::*outside;
  double OptimizerSpec::*inside;
};
constexpr OptimizerNumber optimizer_numbers[] = {{&Optimizer::learning_rate, &OptimizerSpec::learning_rate},
                                                 {&Optimizer::beta1, &OptimizerSpec::beta1},
                                                 {&Optimizer::beta2, &OptimizerSpec::beta2},
                                                 {&Optimizer::eps, &OptimizerSpec::eps},
                                                 {&Optimizer::momentum, &OptimizerSpec::momentum},
                                                 {&Optimizer::dampening, &OptimizerSpec::dampening},
                                                 {&Optimizer::weight_decay, &OptimizerSpec::weight_decay},
                                                 {&Optimizer::alpha, &OptimizerSpec::alpha},
                                                 {&Optimizer::beta2_decay, &OptimizerSpec::beta2_decay},
                                                 {&Optimizer::clip_threshold, &OptimizerSpec::clip_threshold},
                                                 {&Optimizer::min_scale, &OptimizerSpec::min_scale}};

OptimizerSpec internal_optimizer(const Optimizer& from) {
  OptimizerSpec to{.kind = static_cast<OptimizerKind>(from.kind), .nesterov = from.nesterov};
  for (const auto& [outside, inside] : optimizer_numbers) to.*inside = from.*outside;
  return to;
}

Optimizer public_optimizer(const OptimizerSpec& from) {
  Optimizer to{.kind = static_cast<Optimizer::Kind>(from.kind), .nesterov = from.nesterov};
  for (const auto& [outside, inside] : optimizer_numbers) to.*outside = from.*inside;
  return to;
}

plimsoll::ParameterGroup internal_group(const ParameterGroup& from) {
  plimsoll::ParameterGroup to{.pattern = from.pattern, .rate = from.rate, .weight_decay = from.weight_decay};
  if (from.optimizer) to.optimizer = static_cast<OptimizerKind>(*from.optimizer);
  if (from.norms_and_biases) to.rank_below = 2;
  return to;
}

AdapterRequest internal_adapters(const Adapters& from) {
  return {.rank = from.rank,
          .alpha = from.alpha,
          .rslora = from.rslora,
          .dropout = from.dropout,
          .targets = from.targets,
          .root = from.root};
}

CompileRequest internal_request(const CompileOptions& from) {
  CompileRequest to;
  to.model_path = from.model;
  to.import.dims = from.dims;
  to.import.freeze_norm = from.freeze_norm;
  to.device = from.device, to.device_file = from.device_file;
  to.devices = from.devices, to.budgets = from.budgets;
  to.any_order = from.any_order, to.timings = from.timings, to.cluster = from.cluster;
  to.global_batch = from.global_batch, to.max_batch = from.max_batch;
  to.best_batch = from.best_batch;
  TrainingRequest& job = to.training;
  job.adapters = internal_adapters(from.adapters);
  job.quantize = {static_cast<plimsoll::WeightFormat>(from.quantize), from.quantize_skip};
  job.loss = from.loss, job.train = from.train, job.freeze = from.freeze;
  job.batch = from.batch, job.accumulate = from.accumulate;
  job.optimizer = internal_optimizer(from.optimizer);
  for (const ParameterGroup& group : from.groups) job.groups.push_back(internal_group(group));
  job.layer_rate = from.layer_rate, job.ema = from.ema, job.clip_grad_value = from.clip_grad_value;
  job.clip_grad_norm = from.clip_grad_norm, job.first_loss_scale = from.first_loss_scale;
  job.precision = precision_names[static_cast<size_t>(from.precision)], job.precision_rules = from.precision_rules;
  job.master_weights = static_cast<plimsoll::MasterWeights>(from.master_weights);
  job.moments = static_cast<plimsoll::Moments>(from.moments);
  job.layout = static_cast<plimsoll::ImageLayout>(from.layout);
  job.budget_bytes = from.budget_bytes, job.host_budget_bytes = from.host_budget_bytes;
  job.recompute = from.recompute, job.offload = from.offload;
  job.split = from.split, job.split_from = from.split_from;
  const MeshAxis axis = to.has_unlike_devices() ? MeshAxis::Stage : MeshAxis::Data;
  job.mesh[axis] = from.devices.empty() ? from.ranks : static_cast<int64_t>(from.devices.size());
  job.zero = from.zero;
  job.sum_dtype = from.bf16_gradient_sums ? plimsoll::DType::BF16 : plimsoll::DType::F32;
  job.batch_norm = from.local_batch_norm ? Statistics::OfOwnRows : Statistics::OfAllRanks;
  return to;
}

// The inverse of internal_request, for what alternatives change. `asked` has the rest.
CompileOptions public_options(const CompileRequest& from, CompileOptions asked) {
  const TrainingRequest& job = from.training;
  asked.dims = from.import.dims, asked.device = from.device;
  asked.batch = job.batch, asked.accumulate = job.accumulate, asked.global_batch = from.global_batch,
  asked.max_batch = from.max_batch;
  asked.best_batch = from.best_batch;
  asked.precision = precision_named(job.precision);
  asked.train = job.train;
  asked.optimizer = public_optimizer(job.optimizer);
  asked.moments = static_cast<Moments>(job.moments);
  asked.adapters.rank = job.adapters.rank;
  asked.quantize = static_cast<WeightFormat>(job.quantize.format);
  asked.offload = job.offload, asked.host_budget_bytes = job.host_budget_bytes, asked.split = job.split;
  if (job.mesh.ranks() == job.mesh[MeshAxis::Data]) asked.ranks = job.mesh.ranks();
  if (asked.ranks > 1) asked.zero = job.zero;
  return asked;
}

Compiled to_public(CompileResult result, const CompileRequest& request) {
  std::string why = result.fits ? "" : refusal_of(result, request);
  return {plimsoll::to_public(std::move(result.plan)), result.fits, std::move(why), {}};
}

std::vector<Alternative> alternatives_to(const plimsoll::Plan& smallest, llvm::ArrayRef<size_t> split_regions,
                                         const Job& job, const TrainingRequest& training, const CompileOptions& asked) {
  std::vector<Alternative> all;
  if (!asked.alternatives) return all;
  for (const plimsoll::Alternative& one : find_alternatives(smallest, split_regions, job, training)) {
    Alternative& shown = all.emplace_back();
    shown.change = static_cast<Alternative::Change>(one.change);
    shown.options = public_options(one.request, asked);
    if (shown.change == Alternative::Change::Cards) shown.cards = one.number;
    shown.needs_bytes = one.needs_bytes, shown.sample_us = one.sample_us;
    shown.estimated = one.estimated, shown.fits = one.fits;
  }
  return all;
}

CompileHooks hooks_of(const CompileOptions& options) {
  CompileHooks hooks;
  if (options.on_phase)
    hooks.on_phase = [report = options.on_phase](llvm::StringRef phase) { report({phase.data(), phase.size()}); };
  return hooks;
}

Result<Job> open(const CompileOptions& options) {
  CompileRequest request = internal_request(options);
  TrainingRequest& training = request.training;
  if (!options.mesh.empty()) {
    Result<Mesh> mesh = parse_mesh(options.mesh);
    if (!mesh) return mesh.takeError();
    training.mesh = *mesh;
  }
  if (training.mesh.ranks() == 1) training.zero = 0;
  if (Status s = check_ranges(request)) return s;
  return Job::open(std::move(request), hooks_of(options));
}

}  // namespace

Optimizer default_optimizer(Optimizer::Kind kind) noexcept {
  return public_optimizer(plimsoll::default_optimizer(static_cast<OptimizerKind>(kind)));
}

Expected<Compiled> compile(const CompileOptions& options) noexcept {
  Result<Job> job = open(options);
  if (!job) return plimsoll::to_public(job.takeError());
  Result<CompileResult> result = choose_plan(*job, job->request().training, hooks_of(options));
  if (!result) return plimsoll::to_public(result.takeError());
  const std::vector<size_t> split_regions = result->split_regions;
  Compiled compiled = to_public(std::move(*result), job->request());
  if (compiled.fits) return compiled;
  const plimsoll::Plan& smallest = compiled.plan.impl().plan;
  compiled.alternatives = alternatives_to(smallest, split_regions, *job,
                                          with_choices_of(smallest, job->request().training, job->request()), options);
  return compiled;
}

Expected<std::vector<Compiled>> fit(const CompileOptions& options, const std::vector<std::string>& names) noexcept {
  Result<std::vector<DeviceDescription>> devices = devices_named(names, options.device_file);
  if (!devices) return plimsoll::to_public(devices.takeError());
  CompileOptions first = options;
  first.device = devices->front().name;
  Result<Job> model = open(first);
  if (!model) return plimsoll::to_public(model.takeError());
  std::vector<Compiled> all;
  std::optional<DeviceAnswer> closest;
  size_t closest_device = 0;
  for (const DeviceDescription& device : *devices) {
    Result<DeviceAnswer> answer = fit_on(*model, device, hooks_of(options));
    if (!answer) return plimsoll::to_public(answer.takeError());
    all.push_back(to_public(answer->result, answer->job.request()));
    if (closest && closest->lacks_bytes() <= answer->lacks_bytes()) continue;
    closest = std::move(*answer);
    closest_device = all.size() - 1;
  }
  if (!closest->result.fits)
    all[closest_device].alternatives =
        alternatives_to(closest->result.plan, closest->result.split_regions, closest->job, closest->training, options);
  return all;
}

Expected<Merged> merge(const MergeOptions& options) noexcept {
  MergeRequest request{options.model, options.weights, options.adapter, options.output, {}, options.root};
  request.import.dims = options.dims;
  Result<MergeResult> merged = merge_adapter(request);
  if (!merged) return plimsoll::to_public(merged.takeError());
  return Merged{merged->modules, merged->largest_change, merged->most_changed};
}

Expected<std::vector<Finding>> check(const CompileOptions& options) noexcept {
  Result<ModelCheck> check = check_model(internal_request(options), hooks_of(options));
  if (!check) return plimsoll::to_public(check.takeError());
  std::vector<Finding> findings;
  for (const plimsoll::Finding& finding : check->findings)
    findings.push_back({finding.title, finding.message, finding.nodes, finding.freezing, finding.blocks});
  return findings;
}

Expected<std::vector<Device>> devices(const std::string& device_file) noexcept {
  Result<DeviceCatalog> known = known_devices(device_file);
  if (!known) return plimsoll::to_public(known.takeError());
  Result<DeviceDescription> card = find_card_here(*known);
  if (!card) llvm::consumeError(card.takeError());
  std::vector<Device> devices;
  for (const DeviceDescription& device : known->all()) {
    const bool is_cpu = device.backend == "cpu";
    devices.push_back({device.name, device.title, is_cpu ? memory_here() : device.memory_bytes, device.reserve_bytes(),
                       is_cpu || (card && card->name == device.name)});
  }
  return devices;
}

}  // namespace plimsoll::api
