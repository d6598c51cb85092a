#include "frontend/api/job.h"

#include "frontend/api/machine.h"
#include "frontend/onnx/open_dims.h"
#include "frontend/onnx/provenance.h"
#include "ir/machine/cluster.h"
#include "ir/machine/image_decoding.h"
#include "ir/plan/check_ranks.h"
#include "runtime/cpu/cpu_catalog.h"
#include "runtime/cuda/cuda_catalog.h"

#include "llvm/Support/Path.h"

namespace plimsoll {
namespace {

struct ImportedModel : Imported {
  std::vector<std::string> batch_dims;
};

// Gives the leading dimensions that a request leaves open a size, where it chooses the batch.
Result<ImportedModel> import_for_training(CompileRequest& request, const CompileHooks& hooks) {
  constexpr int64_t samples_at_first = 8;  // few other dimensions are 8, and the batch is followed by its size
  if (hooks.on_phase) hooks.on_phase("import");
  Result<Model> model = Model::read(request.model_path);
  if (!model) return model.takeError();
  std::vector<std::string> batch_dims;
  for (const OpenDim& dim : open_dims(model->proto().graph()))
    if (dim.leads) batch_dims.push_back(dim.name);
  if (request.chooses_batch())
    for (const std::string& name : batch_dims) request.import.dims.emplace(name, samples_at_first);
  if (!request.training.adapters.root) request.training.adapters.root = wrapper_prefix(model->proto().graph());
  Imported imported = survey_model(*model, request.import);
  if (imported.report.blocked()) return in_context(request.model_path, model_error(imported.report.summary()));
  return ImportedModel{std::move(imported), std::move(batch_dims)};
}

}  // namespace

std::unique_ptr<KernelCatalog> kernel_catalog_for(const DeviceDescription& device, bool any_order) {
  if (device.backend == "cpu") return std::make_unique<CpuCatalog>();
  return std::make_unique<CudaCatalog>(device, any_order);
}

static Result<KnownDevice> with_kernels(DeviceDescription device, const CompileRequest& request) {
  if (request.decodes_images) device = with_decoding(std::move(device));
  std::unique_ptr<KernelCatalog> catalog = kernel_catalog_for(device, request.any_order);
  if (!request.timings.empty()) {
    Result<TimingCache> times = TimingCache::load(request.timings);
    if (!times) return times.takeError();
    catalog = timed_catalog(std::move(catalog), device.name, std::make_shared<TimingCache>(std::move(*times)));
  }
  return KnownDevice{std::move(device), std::move(catalog)};
}

static Result<KnownDevice> device_named(const std::string& name, const CompileRequest& request) {
  Result<DeviceDescription> device = find_device(name, request.device_file);
  if (!device) return device.takeError();
  return with_kernels(std::move(*device), request);
}

static Result<RankDevices> devices_of(const CompileRequest& request) {
  const std::vector<std::string> names =
      request.devices.empty() ? std::vector<std::string>{request.device} : request.devices;
  std::vector<KnownDevice> kinds;
  std::vector<size_t> kind_of_rank;
  for (const std::string& name : names) {
    const auto found = llvm::find(names, name);
    if (const auto first = static_cast<size_t>(found - names.begin()); first < kind_of_rank.size()) {
      kind_of_rank.push_back(kind_of_rank[first]);
      continue;
    }
    Result<KnownDevice> device = device_named(name, request);
    if (!device) return device.takeError();
    kind_of_rank.push_back(kinds.size());
    kinds.push_back(std::move(*device));
  }
  return RankDevices::of_ranks(std::move(kinds), std::move(kind_of_rank));
}

Result<RankDevices> Job::devices_for(const Mesh& mesh) const {
  ClusterDescription one_host;
  one_host.cards = mesh.ranks();
  return devices_.linked(cluster_.value_or(one_host), mesh);
}

Result<StageDevices> Job::stage_devices_for(const Mesh& mesh) const {
  Result<RankDevices> devices = devices_for(mesh);
  if (!devices) return devices.takeError();
  return devices->on(mesh);
}

Result<DeviceDescription> Job::device_for(const Mesh& mesh) const {
  Result<StageDevices> stages = stage_devices_for(mesh);
  if (!stages) return stages.takeError();
  return stages->device(0);
}

// All but the model.
Result<Job> Job::open_machine(CompileRequest request) {
  Job job;
  Result<RankDevices> devices = devices_of(request);
  if (!devices) return devices.takeError();
  job.devices_ = std::move(*devices);
  if (!request.cluster.empty()) {
    Result<ClusterDescription> cluster = read_cluster(request.cluster);
    if (!cluster) return cluster.takeError();
    request.training.host_memory_bytes = cluster->host_memory_bytes;
    request.training.ranks_per_host = cluster->cards;
    job.cluster_ = std::move(*cluster);
    Result<RankDevices> linked = job.devices_for(request.training.mesh);
    if (!linked) return linked.takeError();
  }
  job.request_ = std::move(request);
  return job;
}

Result<Job> Job::open(CompileRequest request, const CompileHooks& hooks) {
  Result<Job> job = open_machine(std::move(request));
  if (!job) return job;
  Result<ImportedModel> imported = import_for_training(job->request_, hooks);
  if (!imported) return imported.takeError();
  Result<CleanModel> clean =
      clean_model(std::move(imported->graph), job->request_.training.loss, hooks, job->request_.training.evaluation);
  if (!clean) return clean.takeError();
  job->model_ = std::make_shared<const Model>(
      Model{std::move(*clean), std::move(imported->report.obstacles), std::move(imported->batch_dims)});
  return job;
}

Result<Job> Job::read_for_batch(int64_t batch) const {
  CompileRequest request = request_;
  for (const std::string& name : batch_dims()) request.import.dims[name] = batch;
  request.max_batch = request.best_batch = false;
  request.global_batch = request.training.batch = 0;
  return open(std::move(request));
}

Job Job::with(CompileRequest request) const {
  Job job = *this;
  job.request_ = std::move(request);
  return job;
}

Result<Job> Job::on(const DeviceDescription& device) const {
  Job job = *this;
  job.request_.device = device.name;
  job.request_.devices.clear();
  Result<KnownDevice> known = with_kernels(device, job.request_);
  if (!known) return known.takeError();
  job.devices_ = RankDevices(std::move(*known));
  return job;
}

Result<Job> Job::with_timings(const std::string& file) const {
  Job job = *this;
  job.request_.timings = file;
  return job.on(device());
}

Result<CompileResult> Job::compile(const TrainingRequest& training, const CompileHooks& hooks) const {
  Result<RankDevices> devices = devices_for(training.mesh);
  if (!devices) return devices.takeError();
  Result<StageDevices> stages = devices->on(training.mesh);
  if (!stages) return stages.takeError();
  Result<TrainingRequest> request = with_rank_budgets(training, request_.budgets);
  if (!request) return request.takeError();
  Result<CompileResult> result = compile_training(model_->clean, *request, *stages, hooks);
  if (!result) return result.takeError();
  for (Plan* plan : result->plans()) {
    for (const Obstacle& note : model_->notes)
      plan->decisions.insert(plan->decisions.begin(), {"import", note.subject, "noted", note.message});
    plan->model = llvm::sys::path::filename(request_.model_path).str();
    plan->dims.assign(request_.import.dims.begin(), request_.import.dims.end());
    if (training.mesh[MeshAxis::Stage] > 1 || !devices_.are_unlike()) continue;
    plan->kinds = devices->kinds_of_ranks(*request, request_.budgets);
    if (!result->fits) continue;
    if (Status s = check_ranks(*plan)) return s;
  }
  return result;
}

Result<std::string> Job::compile_until(CompileRequest request, const CompileHooks& hooks) {
  Result<Job> job = open_machine(std::move(request));
  if (!job) return job.takeError();
  const CompileRequest& asked = job->request_;
  Result<RankDevices> devices = job->devices_for(asked.training.mesh);
  if (!devices) return devices.takeError();
  Result<StageDevices> stages = devices->on(asked.training.mesh);
  if (!stages) return stages.takeError();
  Result<TrainingRequest> training = with_rank_budgets(asked.training, asked.budgets);
  if (!training) return training.takeError();
  Result<ImportedModel> imported = import_for_training(job->request_, hooks);
  if (!imported) return imported.takeError();
  Result<PlanDraft> draft = plimsoll::compile_until(std::move(imported->graph), *training, *stages, hooks);
  if (!draft) return draft.takeError();
  return PlanDraftSubject(*draft).to_text();
}

}  // namespace plimsoll
