#pragma once

// The devices of a job's ranks, and what they make of a mesh.

#include "ir/machine/cluster.h"
#include "ir/machine/stage_devices.h"
#include "passes/job.h"

#include <memory>

namespace plimsoll {

struct KnownDevice {
  DeviceDescription device;
  std::shared_ptr<const KernelCatalog> catalog;
};

// Ranks of one kind are planned with that device's description and kernels. Stages of a pipeline may differ; ranks of
// one stage run one plan. Without stages that plan is made for what all devices can do (ir/machine/common_device.h).
class RankDevices {
 public:
  RankDevices() = default;
  // One kind of device for any number of ranks.
  explicit RankDevices(KnownDevice device) : kinds_{std::move(device)}, common_(kinds_.front()) {}
  // `kind_of_rank` has an index into `kinds` for each rank. Errors: backends that cannot share a job.
  static Result<RankDevices> of_ranks(std::vector<KnownDevice> kinds, std::vector<size_t> kind_of_rank);

  // The same with the links of a cluster between the mesh's ranks. The error says that the cluster has too few cards.
  Result<RankDevices> linked(const ClusterDescription& cluster, const Mesh& mesh) const;

  bool are_unlike() const { return kinds_.size() > 1; }
  // The device that stands for what all of them can do.
  const KnownDevice& common() const { return common_; }

  // The device of each stage. Errors: another number of ranks than devices, and a stage with unlike devices; then they
  // say in which order the devices would do.
  Result<StageDevices> on(const Mesh& mesh) const;
  // The kinds among the ranks of a plan without stages, for the plan; empty where all are of one kind. `budgets` are by
  // rank; empty: as the request has them.
  std::vector<RankKind> kinds_of_ranks(const TrainingRequest& request, llvm::ArrayRef<int64_t> budgets) const;

 private:
  Status check_stages(const Mesh& mesh) const;

  std::vector<KnownDevice> kinds_;
  std::vector<size_t> kind_of_rank_;  // empty: the first for all
  KnownDevice common_;
};

// The request with the least budget of each stage's ranks. `budgets` are by rank; empty: as the request has them.
// The error says that there are as many budgets as ranks.
Result<TrainingRequest> with_rank_budgets(TrainingRequest request, llvm::ArrayRef<int64_t> budgets);

}  // namespace plimsoll
