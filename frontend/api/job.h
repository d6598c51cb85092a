#pragma once

// A model on its way to plans: the file is read and cleaned once, device, kernels and timings are resolved once, and
// every plan that is tried starts from there.

#include "frontend/api/rank_devices.h"
#include "frontend/api/weights.h"
#include "frontend/onnx/import.h"
#include "ir/machine/cluster.h"
#include "ir/machine/timing_cache.h"
#include "passes/compile.h"

#include <set>

namespace plimsoll {

struct CompileRequest {
  std::string model_path;
  ImportOptions import;
  TrainingRequest training;    // its precision may also be "auto" (frontend/api/choose_plan.h)
  int64_t global_batch = 0;    // samples per update, for which batch and accumulate are chosen; 0: not chosen
  bool max_batch = false;      // choose the largest batch that fits
  bool best_batch = false;     // choose the batch that fits with the least predicted time per sample
  int64_t cards = 0;           // among which a mesh is searched for; 0: it is that of `training`
  bool any_zero = false;       // the ZeRO stage is searched for too
  std::string device = "cpu";  // a name of ir/machine/devices.json or of device_file; "auto": what is in this machine
  std::vector<std::string> devices;  // of each rank a name as above, where they may differ; empty: `device` for all
  std::vector<int64_t> budgets;      // of each rank, above 0; empty: training.budget_bytes for all
  std::string device_file;           // more descriptions, in the form of ir/machine/devices.json
  // The open dimension along which samples differ in length; `import` binds it to the longest. Empty: there is none.
  std::string length_dim;
  std::vector<int64_t> shorter_lengths;  // ascending, each of which gets a step of its own
  std::string cluster;          // how the devices of several ranks hang together (ir/machine/cluster.h); empty: unknown
  bool decodes_images = false;  // the card also decodes JPEGs while it trains, for which it keeps bytes back
  bool any_order = false;       // allow faster kernels whose sums run in another order every time
  std::string timings;          // measured times of kernels (ir/machine/timing_cache.h); empty: none

  bool chooses_batch() const { return max_batch || best_batch || global_batch > 0; }
  bool has_unlike_devices() const { return std::set<std::string>(devices.begin(), devices.end()).size() > 1; }
};

class Job {
 public:
  // Errors: a device, cluster or timing file that is not there, a model that cannot be trained.
  static Result<Job> open(CompileRequest request, const CompileHooks& hooks = {});
  // The same model and machine for another request, whose import and loss are the same.
  Job with(CompileRequest request) const;
  // The same model on another device, or with measured times of its kernels, where all ranks have one kind of device.
  Result<Job> on(const DeviceDescription& device) const;
  Result<Job> with_timings(const std::string& file) const;

  const CompileRequest& request() const { return request_; }
  // Unlike devices are described by what all of them can do.
  const DeviceDescription& device() const { return devices_.common().device; }
  const KernelCatalog& catalog() const { return *devices_.common().catalog; }
  // The device with the links of the request's cluster between the mesh's ranks; without a cluster as it is. Errors: a
  // cluster with too few cards, a mesh that unlike devices cannot have.
  Result<DeviceDescription> device_for(const Mesh& mesh) const;
  // Those of the mesh's stages; the job must outlive them.
  Result<StageDevices> stage_devices_for(const Mesh& mesh) const;
  const CleanModel& model() const { return model_->clean; }

  // Open dimensions that lead an input of the model. Of a request that chooses its batch they count samples, and those
  // that it gives no size have one for a start.
  const std::vector<std::string>& batch_dims() const { return model_->batch_dims; }
  // The model read again with those dimensions at `batch`, for a request that chooses no batch.
  Result<Job> read_for_batch(int64_t batch) const;

  // A plan of the job as it was asked for, or with `training` in place of the request's; its loss stays the request's.
  Result<CompileResult> compile(const CompileHooks& hooks = {}) const { return compile(request_.training, hooks); }
  Result<CompileResult> compile(const TrainingRequest& training, const CompileHooks& hooks = {}) const;

  // The graphs as text, as they stand after the pass or phase that hooks.pipeline.stop_after names.
  static Result<std::string> compile_until(CompileRequest request, const CompileHooks& hooks);

 private:
  struct Model {
    CleanModel clean;
    std::vector<Obstacle> notes;  // of the import; none blocks
    std::vector<std::string> batch_dims;
  };

  static Result<Job> open_machine(CompileRequest request);
  Result<RankDevices> devices_for(const Mesh& mesh) const;

  CompileRequest request_;
  RankDevices devices_;  // without the links of the cluster
  std::optional<ClusterDescription> cluster_;
  std::shared_ptr<const Model> model_;
};

// What can run on a device, readable without one.
std::unique_ptr<KernelCatalog> kernel_catalog_for(const DeviceDescription& device, bool any_order = false);

}  // namespace plimsoll
