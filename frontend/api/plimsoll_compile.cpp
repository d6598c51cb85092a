#include "frontend/api/check_model.h"
#include "frontend/api/machine.h"
#include "frontend/api/plimsoll_impl.h"
#include "frontend/api/request_ranges.h"
#include "passes/budget/budget_report.h"

#include <optional>

namespace plimsoll::api {
namespace {

constexpr const char* precision_names[] = {"exported", "fp32", "tf32", "bf16", "fp16"};

OptimizerSpec internal_optimizer(const Optimizer& from) {
  OptimizerSpec to;
  to.kind = static_cast<OptimizerKind>(from.kind);
  to.learning_rate = from.learning_rate;
  to.beta1 = from.beta1, to.beta2 = from.beta2, to.eps = from.eps;
  to.momentum = from.momentum, to.dampening = from.dampening, to.nesterov = from.nesterov;
  to.weight_decay = from.weight_decay;
  return to;
}

CompileRequest internal_request(const CompileOptions& from) {
  CompileRequest to;
  to.model_path = from.model;
  to.import.dims = from.dims;
  to.import.freeze_norm = from.freeze_norm;
  to.device = from.device, to.device_file = from.device_file;
  to.any_order = from.any_order, to.timings = from.timings;
  TrainingRequest& job = to.training;
  job.loss = from.loss, job.train = from.train, job.freeze = from.freeze;
  job.batch = from.batch, job.accumulate = from.accumulate;
  job.optimizer = internal_optimizer(from.optimizer);
  job.clip_grad_norm = from.clip_grad_norm, job.first_loss_scale = from.first_loss_scale;
  job.precision = precision_names[static_cast<size_t>(from.precision)], job.precision_rules = from.precision_rules;
  job.master_weights = static_cast<plimsoll::MasterWeights>(from.master_weights);
  job.layout = static_cast<plimsoll::ImageLayout>(from.layout);
  job.budget_bytes = from.budget_bytes, job.host_budget_bytes = from.host_budget_bytes;
  job.recompute = from.recompute, job.offload = from.offload;
  job.split = from.split, job.split_from = from.split_from;
  return to;
}

// The plan where it fits, else the one that needs least and why.
Expected<Compiled> to_public(Result<CompileResult> result) {
  if (!result) return plimsoll::to_public(result.takeError());
  std::string why = result->fits ? "" : shortfall(*result);
  return Compiled{plimsoll::to_public(std::move(result->plan)), result->fits, std::move(why)};
}

CompileHooks hooks_of(const CompileOptions& options) {
  CompileHooks hooks;
  if (options.on_phase)
    hooks.on_phase = [report = options.on_phase](llvm::StringRef phase) { report({phase.data(), phase.size()}); };
  return hooks;
}

Result<Job> open(const CompileOptions& options) {
  CompileRequest request = internal_request(options);
  if (Status s = check_ranges(request)) return s;
  return Job::open(std::move(request), hooks_of(options));
}

}  // namespace

Expected<Compiled> compile(const CompileOptions& options) noexcept {
  Result<Job> job = open(options);
  if (!job) return plimsoll::to_public(job.takeError());
  return to_public(job->compile(hooks_of(options)));
}

Expected<std::vector<Compiled>> fit(const CompileOptions& options, const std::vector<std::string>& names) noexcept {
  Result<DeviceCatalog> known = known_devices(options.device_file);
  if (!known) return plimsoll::to_public(known.takeError());
  std::vector<DeviceDescription> devices;
  for (const std::string& name : names) {
    Result<DeviceDescription> device = find_device(name, options.device_file);
    if (!device) return plimsoll::to_public(device.takeError());
    devices.push_back(std::move(*device));
  }
  Result<Job> model = open(options);
  if (!model) return plimsoll::to_public(model.takeError());
  std::vector<Compiled> all;
  for (const DeviceDescription& device : names.empty() ? known->all() : llvm::ArrayRef<DeviceDescription>(devices)) {
    Result<Job> job = model->on(device);
    if (!job) return plimsoll::to_public(job.takeError());
    Expected<Compiled> compiled = to_public(job->compile(hooks_of(options)));
    if (!compiled) return compiled.error();
    all.push_back(std::move(*compiled));
  }
  return all;
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
