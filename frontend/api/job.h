#pragma once

// A model on its way to plans: the file is read and cleaned once, device, kernels and timings are resolved once, and
// every plan that is tried starts from there.

#include "frontend/api/rank_devices.h"
#include "frontend/onnx/import.h"
#include "ir/machine/device.h"
#include "ir/machine/timing_cache.h"
#include "passes/compile.h"
#include "runtime/session.h"

#include <set>

namespace plimsoll {

struct CompileRequest {
  std::string model_path;
  ImportOptions import;
  TrainingRequest training;    // its precision may also be "auto" (frontend/api/choose_plan.h)
  int64_t global_batch = 0;    // samples per update, for which batch and accumulate are chosen; 0: not chosen
  bool max_batch = false;      // choose the largest batch that fits
  std::string device = "cpu";  // a name of ir/machine/devices.json or of device_file; "auto": what is in this machine
  std::vector<std::string> devices;  // of each rank a name as above, where they may differ; empty: `device` for all
  std::vector<int64_t> budgets;      // of each rank, above 0; empty: training.budget_bytes for all
  std::string device_file;           // more descriptions, in the form of ir/machine/devices.json
  std::string cluster;     // how the devices of several ranks hang together (ir/machine/cluster.h); empty: unknown
  bool any_order = false;  // allow faster kernels whose sums run in another order every time
  std::string timings;     // measured times of kernels (ir/machine/timing_cache.h); empty: none

  bool has_unlike_devices() const { return std::set<std::string>(devices.begin(), devices.end()).size() > 1; }
};

// The device with the link that so many ranks of a cluster talk over; without a file the device as it is.
Result<DeviceDescription> with_cluster(DeviceDescription device, const std::string& file, int64_t ranks);

class Job {
 public:
  // Errors: a device or timing file that is not there, a model that cannot be trained.
  static Result<Job> open(CompileRequest request, const CompileHooks& hooks = {});
  // The same model on another device, or with measured times of its kernels, where all ranks have one kind of device.
  Result<Job> on(const DeviceDescription& device) const;
  Result<Job> with_timings(const std::string& file) const;

  const CompileRequest& request() const { return request_; }
  // Unlike devices are described by what all of them can do.
  const DeviceDescription& device() const { return devices_.common().device; }
  const KernelCatalog& catalog() const { return *devices_.common().catalog; }

  // A plan of the job as it was asked for, or with `training` in place of the request's; its loss stays the request's.
  Result<CompileResult> compile(const CompileHooks& hooks = {}) const { return compile(request_.training, hooks); }
  Result<CompileResult> compile(const TrainingRequest& training, const CompileHooks& hooks = {}) const;

 private:
  struct Model {
    CleanModel clean;
    std::vector<Obstacle> notes;  // of the import; none blocks
  };

  CompileRequest request_;
  RankDevices devices_;
  std::shared_ptr<const Model> model_;
};

// The graphs as text, as they stand after the pass or phase that hooks.pipeline.stop_after names.
Result<std::string> compile_until(const CompileRequest& request, const CompileHooks& hooks);

// The weights of a file by name, as a session asks for them.
struct Weights {
  WeightLoader load;
  WeightRangeLoader load_range;  // of a file that holds bytes in order, it reads the asked ones alone
};
// Of an .onnx or .safetensors file, which the loaders keep.
Result<Weights> open_weights(const std::string& path);

// What can run on a device, readable without one.
std::unique_ptr<KernelCatalog> kernel_catalog_for(const DeviceDescription& device, bool any_order = false);

}  // namespace plimsoll
