#include "frontend/api/check_model.h"
#include "frontend/api/machine.h"
#include "frontend/api/plimsoll_impl.h"
#include "frontend/api/request_ranges.h"

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

// Returns the plan if it fits, else the plan that needs least and the reason.
Result<Compiled> compile_request(const OpenedModel& model, const CompileRequest& request, const CompileHooks& quiet) {
  std::optional<plimsoll::Plan> smallest;
  CompileHooks hooks = quiet;
  hooks.on_refused = [&](const plimsoll::Plan& plan) { smallest = plan; };
  Result<plimsoll::Plan> plan = compile_opened(model, request, hooks);
  if (plan) return Compiled{to_public(std::move(*plan)), true, ""};
  const Diag diag = take_diag(plan.takeError());
  if (diag.fault() != plimsoll::Fault::Budget || !smallest)
    return Status(llvm::make_error<Diag>(diag.fault(), diag.text()));
  return Compiled{to_public(std::move(*smallest)), false, diag.text()};
}

CompileHooks hooks_of(const CompileOptions& options) {
  CompileHooks hooks;
  if (options.on_phase)
    hooks.on_phase = [report = options.on_phase](llvm::StringRef phase) { report({phase.data(), phase.size()}); };
  return hooks;
}

struct Opened {
  CompileRequest request;
  CompileHooks hooks;
  OpenedModel model;
};

Result<Opened> open(const CompileOptions& options) {
  CompileRequest request = internal_request(options);
  if (Status s = check_ranges(request)) return s;
  CompileHooks hooks = hooks_of(options);
  Result<OpenedModel> model = open_model(request, hooks);
  if (!model) return model.takeError();
  return Opened{std::move(request), std::move(hooks), std::move(*model)};
}

}  // namespace

Expected<Compiled> compile(const CompileOptions& options) noexcept {
  Result<Opened> opened = open(options);
  if (!opened) return to_public(opened.takeError());
  Result<Compiled> compiled = compile_request(opened->model, opened->request, opened->hooks);
  if (!compiled) return to_public(compiled.takeError());
  return std::move(*compiled);
}

Expected<std::vector<Compiled>> fit(const CompileOptions& options, const std::vector<std::string>& names) noexcept {
  std::vector<std::string> devices = names;
  if (devices.empty()) {
    Result<DeviceCatalog> known = known_devices(options.device_file);
    if (!known) return to_public(known.takeError());
    for (const DeviceDescription& device : known->all()) devices.push_back(device.name);
  }
  Result<Opened> opened = open(options);
  if (!opened) return to_public(opened.takeError());
  std::vector<Compiled> all;
  for (const std::string& name : devices) {
    CompileRequest request = opened->request;
    request.device = name;
    Result<Compiled> compiled = compile_request(opened->model, request, opened->hooks);
    if (!compiled) return to_public(compiled.takeError());
    all.push_back(std::move(*compiled));
  }
  return all;
}

Expected<std::vector<Finding>> check(const CompileOptions& options) noexcept {
  Result<ModelCheck> check = check_model(internal_request(options), hooks_of(options));
  if (!check) return to_public(check.takeError());
  std::vector<Finding> findings;
  for (const plimsoll::Finding& finding : check->findings)
    findings.push_back({finding.title, finding.message, finding.nodes, finding.freezing, finding.blocks});
  return findings;
}

Expected<std::vector<Device>> devices(const std::string& device_file) noexcept {
  Result<DeviceCatalog> known = known_devices(device_file);
  if (!known) return to_public(known.takeError());
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
