#include "frontend/api/job.h"

#include "frontend/api/machine.h"
#include "ir/machine/cluster.h"
#include "ir/support/strings.h"
#include "runtime/cpu/cpu_catalog.h"
#include "runtime/cuda/cuda_catalog.h"
#include "runtime/data/safetensors.h"

#include "llvm/Support/Path.h"

#include <cstring>

namespace plimsoll {
namespace {

Status differs(const llvm::Twine& where, llvm::StringRef name, const Type& has, const Type& wants) {
  return model_error(where + ": weight '" + name + "' is " + to_string(has) + ", the plan needs " + to_string(wants));
}

// The whole of a weight is its range from 0 on, in its own shape.
Weights weights_by_range(WeightRangeLoader load_range) {
  WeightLoader load = [load_range](llvm::StringRef name, const TensorView& into) {
    return load_range(name, into.type, 0, into);
  };
  return {std::move(load), std::move(load_range)};
}

Result<Weights> open_onnx_weights(const std::string& path) {
  Result<Model> model = Model::read(path);
  if (!model) return model.takeError();
  auto kept = std::make_shared<Model>(std::move(*model));
  Result<WeightSource> source = WeightSource::open(*kept);
  if (!source) return source.takeError();
  auto weights = std::make_shared<WeightSource>(std::move(*source));
  return weights_by_range(
      [path, kept, weights](llvm::StringRef name, const Type& whole, int64_t first, const TensorView& into) -> Status {
        const Weight* weight = weights->find(name);
        if (!weight) return model_error(path + ": has no weight '" + name + "'");
        if (weight->type != whole) return differs(path, name, weight->type, whole);
        Status loaded = weights->load_range(name, first, into);
        return loaded ? in_context(path, std::move(loaded)) : Status::success();
      });
}

Result<Weights> open_safetensors_weights(const std::string& path) {
  Result<SafetensorsFile> file = SafetensorsFile::open(path);
  if (!file) return file.takeError();
  auto kept = std::make_shared<SafetensorsFile>(std::move(*file));
  return weights_by_range(
      [path, kept](llvm::StringRef name, const Type& whole, int64_t first, const TensorView& into) -> Status {
        const TensorEntry* entry = kept->find(name);
        if (!entry) return model_error(path + ": has no weight '" + name + "'");
        if (entry->type != whole) return differs(path, name, entry->type, whole);
        return kept->read_range(*entry, first, into.elements(), into.data);
      });
}

Result<Imported> import_for_training(const CompileRequest& request, const CompileHooks& hooks) {
  if (hooks.on_phase) hooks.on_phase("import");
  Result<Model> model = Model::read(request.model_path);
  if (!model) return model.takeError();
  Imported imported = survey_model(*model, request.import);
  if (imported.report.blocked()) return in_context(request.model_path, model_error(imported.report.summary()));
  return imported;
}

}  // namespace

std::unique_ptr<KernelCatalog> kernel_catalog_for(const DeviceDescription& device, bool any_order) {
  if (device.backend == "cpu") return std::make_unique<CpuCatalog>();
  return std::make_unique<CudaCatalog>(device, any_order);
}

static Result<std::unique_ptr<KernelCatalog>> catalog_for(const DeviceDescription& device,
                                                          const CompileRequest& request) {
  std::unique_ptr<KernelCatalog> catalog = kernel_catalog_for(device, request.any_order);
  if (request.timings.empty()) return catalog;
  Result<TimingCache> times = TimingCache::load(request.timings);
  if (!times) return times.takeError();
  return timed_catalog(std::move(catalog), device.name, std::make_shared<TimingCache>(std::move(*times)));
}

Status Job::resolve_catalog() {
  Result<std::unique_ptr<KernelCatalog>> catalog = catalog_for(device_, request_);
  if (!catalog) return catalog.takeError();
  catalog_ = std::move(*catalog);
  return Status::success();
}

Result<DeviceDescription> with_cluster(DeviceDescription device, const std::string& file, int64_t ranks) {
  if (file.empty()) return device;
  Result<ClusterDescription> cluster = read_cluster(file);
  if (!cluster) return cluster.takeError();
  return on_cluster(std::move(device), *cluster, ranks);
}

static Result<DeviceDescription> device_of(const CompileRequest& request) {
  Result<DeviceDescription> device = find_device(request.device, request.device_file);
  if (!device) return device;
  return with_cluster(std::move(*device), request.cluster, request.training.mesh.ranks());
}

Result<Job> Job::open(CompileRequest request, const CompileHooks& hooks) {
  Job job;
  Result<DeviceDescription> device = device_of(request);
  if (!device) return device.takeError();
  job.request_ = std::move(request);
  job.device_ = std::move(*device);
  if (Status s = job.resolve_catalog()) return s;
  Result<Imported> imported = import_for_training(job.request_, hooks);
  if (!imported) return imported.takeError();
  Result<CleanModel> clean = clean_model(std::move(imported->graph), job.request_.training.loss, hooks);
  if (!clean) return clean.takeError();
  job.model_ = std::make_shared<const Model>(Model{std::move(*clean), std::move(imported->report.obstacles)});
  return job;
}

Result<Job> Job::on(const DeviceDescription& device) const {
  Job job = *this;
  job.device_ = device;
  job.request_.device = device.name;
  if (Status s = job.resolve_catalog()) return s;
  return job;
}

Result<Job> Job::with_timings(const std::string& file) const {
  Job job = *this;
  job.request_.timings = file;
  if (Status s = job.resolve_catalog()) return s;
  return job;
}

Result<CompileResult> Job::compile(const TrainingRequest& training, const CompileHooks& hooks) const {
  Result<CompileResult> result = compile_training(model_->clean, training, StageDevices(device_, *catalog_), hooks);
  if (!result) return result.takeError();
  for (Plan* plan : result->plans()) {
    for (const Obstacle& note : model_->notes)
      plan->decisions.insert(plan->decisions.begin(), {"import", note.subject, "noted", note.message});
    plan->model = llvm::sys::path::filename(request_.model_path).str();
    plan->dims.assign(request_.import.dims.begin(), request_.import.dims.end());
  }
  return result;
}

Result<std::string> compile_until(const CompileRequest& request, const CompileHooks& hooks) {
  Result<DeviceDescription> device = device_of(request);
  if (!device) return device.takeError();
  Result<std::unique_ptr<KernelCatalog>> catalog = catalog_for(*device, request);
  if (!catalog) return catalog.takeError();
  Result<Imported> imported = import_for_training(request, hooks);
  if (!imported) return imported.takeError();
  Result<PlanDraft> draft =
      compile_until(std::move(imported->graph), request.training, StageDevices(*device, **catalog), hooks);
  if (!draft) return draft.takeError();
  return PlanDraftSubject(*draft).to_text();
}

Result<Weights> open_weights(const std::string& path) {
  if (ends_with(path, ".onnx")) return open_onnx_weights(path);
  if (ends_with(path, ".safetensors")) return open_safetensors_weights(path);
  return usage_error(path + ": weights come from a .onnx or a .safetensors file");
}

}  // namespace plimsoll
