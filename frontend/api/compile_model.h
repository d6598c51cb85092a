#pragma once

// What the plimsoll program does, as a library: from a model's file to a plan, from a file of weights to a
// session.

#include "frontend/onnx/import.h"
#include "ir/machine/device.h"
#include "passes/compile.h"
#include "runtime/session.h"

namespace plimsoll {

struct CompileRequest {
  std::string model_path;
  ImportOptions import;
  TrainingRequest training;
  std::string device = "cpu";  // a name of ir/machine/devices.json or of device_file; "auto": what is in this machine
  std::string device_file;     // more descriptions, in the form of ir/machine/devices.json
  bool any_order = false;      // faster kernels that give other bits each time are welcome
  std::string timings;         // measured times of kernels (ir/machine/timing_cache.h)
};

// Imports the model and compiles it for the device. The plan has passed the independent checker.
Result<Plan> compile_model(const CompileRequest& request, const CompileHooks& hooks = {});

// A model that was imported and cleaned once, for many plans.
struct OpenedModel {
  CleanModel clean;
  std::vector<Obstacle> notes;  // of the import; none blocks
};
Result<OpenedModel> open_model(const CompileRequest& request, const CompileHooks& hooks = {});

// A plan of it as compile_model makes it. The request's file, import and loss are those that it was opened with.
Result<Plan> compile_opened(const OpenedModel& model, const CompileRequest& request, const CompileHooks& hooks = {});

// The same up to the pass or phase that hooks.pipeline.stop_after names: the graphs as they then stand.
Result<Program> compile_model_until(const CompileRequest& request, const CompileHooks& hooks);

// The weights of an .onnx or .safetensors file by name. The loader keeps the file open.
Result<WeightLoader> open_weights(const std::string& path);

// What can run on a device, readable without one.
std::unique_ptr<KernelCatalog> kernel_catalog_for(const DeviceDescription& device, bool any_order = false);

}  // namespace plimsoll
