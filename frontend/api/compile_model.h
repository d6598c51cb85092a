#pragma once

// The steps of the plimsoll program as functions: from a model's file to a plan, and from a file of weights to a
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
  std::string device =
      "cpu";                // a name of ir/machine/devices.json or of device_file; "auto": the device in this machine
  std::string device_file;  // more descriptions, in the form of ir/machine/devices.json
  bool any_order = false;   // allows faster kernels whose results differ in their last bits from run to run
  std::string timings;      // measured times of kernels (ir/machine/timing_cache.h)
};

// Imports the model and compiles it for the device. The plan has passed the independent checker.
Result<Plan> compile_model(const CompileRequest& request, const CompileHooks& hooks = {});

// A model that is imported and cleaned once and compiled to many plans.
struct OpenedModel {
  CleanModel clean;
  std::vector<Obstacle> notes;  // notes of the import; none blocks
};
Result<OpenedModel> open_model(const CompileRequest& request, const CompileHooks& hooks = {});

// Compiles the model as compile_model does. The request must have the file, import and loss that it was opened with.
Result<Plan> compile_opened(const OpenedModel& model, const CompileRequest& request, const CompileHooks& hooks = {});

// Stops after the pass or phase that hooks.pipeline.stop_after names and returns the graphs.
Result<Program> compile_model_until(const CompileRequest& request, const CompileHooks& hooks);

// Returns a loader of weights by name from an .onnx or .safetensors file, which it keeps open.
Result<WeightLoader> open_weights(const std::string& path);

// Returns the kernels that can run on a device. No device is needed.
std::unique_ptr<KernelCatalog> kernel_catalog_for(const DeviceDescription& device, bool any_order = false);

}  // namespace plimsoll
