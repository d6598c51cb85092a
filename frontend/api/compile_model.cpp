#include "frontend/api/compile_model.h"

#include "frontend/api/machine.h"
#include "ir/machine/timing_cache.h"
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

Result<WeightLoader> open_onnx_weights(const std::string& path) {
  Result<Model> model = Model::read(path);
  if (!model) return model.takeError();
  auto kept = std::make_shared<Model>(std::move(*model));
  Result<WeightSource> source = WeightSource::open(*kept);
  if (!source) return source.takeError();
  auto weights = std::make_shared<WeightSource>(std::move(*source));
  return WeightLoader([path, kept, weights](llvm::StringRef name, const TensorView& into) -> Status {
    const Weight* weight = weights->find(name);
    if (!weight) return model_error(path + ": has no weight '" + name + "'");
    if (weight->type != into.type) return differs(path, name, weight->type, into.type);
    Result<Tensor> tensor = weights->load(name);
    if (!tensor) return in_context(path, tensor.takeError());
    std::memcpy(into.data, tensor->data(), static_cast<size_t>(into.type.bytes()));
    return Status::success();
  });
}

Result<WeightLoader> open_safetensors_weights(const std::string& path) {
  Result<SafetensorsFile> file = SafetensorsFile::open(path);
  if (!file) return file.takeError();
  auto kept = std::make_shared<SafetensorsFile>(std::move(*file));
  return WeightLoader([path, kept](llvm::StringRef name, const TensorView& into) -> Status {
    const TensorEntry* entry = kept->find(name);
    if (!entry) return model_error(path + ": has no weight '" + name + "'");
    if (entry->type != into.type) return differs(path, name, entry->type, into.type);
    return kept->read(*entry, into.data);
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

Result<Program> compile_model_until(const CompileRequest& request, const CompileHooks& hooks) {
  Result<DeviceDescription> device = find_device(request.device, request.device_file);
  if (!device) return device.takeError();
  Result<Imported> imported = import_for_training(request, hooks);
  if (!imported) return imported.takeError();
  Result<std::unique_ptr<KernelCatalog>> catalog = catalog_for(*device, request);
  if (!catalog) return catalog.takeError();
  return compile_until(std::move(imported->graph), request.training, **catalog, hooks);
}

Result<OpenedModel> open_model(const CompileRequest& request, const CompileHooks& hooks) {
  Result<Imported> imported = import_for_training(request, hooks);
  if (!imported) return imported.takeError();
  Result<CleanModel> clean = clean_model(std::move(imported->graph), request.training.loss, hooks);
  if (!clean) return clean.takeError();
  return OpenedModel{std::move(*clean), std::move(imported->report.obstacles)};
}

Result<Plan> compile_opened(const OpenedModel& model, const CompileRequest& request, const CompileHooks& hooks) {
  Result<DeviceDescription> device = find_device(request.device, request.device_file);
  if (!device) return device.takeError();
  Result<std::unique_ptr<KernelCatalog>> catalog = catalog_for(*device, request);
  if (!catalog) return catalog.takeError();
  Result<Plan> plan = compile_training(model.clean, request.training, *device, **catalog, hooks);
  if (!plan) return plan.takeError();
  for (const Obstacle& note : model.notes)
    plan->decisions.insert(plan->decisions.begin(), {"import", note.subject, "noted", note.message});
  plan->model = llvm::sys::path::filename(request.model_path).str();
  plan->dims.assign(request.import.dims.begin(), request.import.dims.end());
  return plan;
}

Result<Plan> compile_model(const CompileRequest& request, const CompileHooks& hooks) {
  if (Result<DeviceDescription> device = find_device(request.device, request.device_file); !device)
    return device.takeError();
  Result<OpenedModel> model = open_model(request, hooks);
  return model ? compile_opened(*model, request, hooks) : model.takeError();
}

Result<WeightLoader> open_weights(const std::string& path) {
  if (ends_with(path, ".onnx")) return open_onnx_weights(path);
  if (ends_with(path, ".safetensors")) return open_safetensors_weights(path);
  return usage_error(path + ": weights come from a .onnx or a .safetensors file");
}

}  // namespace plimsoll
