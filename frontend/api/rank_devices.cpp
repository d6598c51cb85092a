#include "frontend/api/rank_devices.h"

#include "ir/machine/common_device.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

#include <algorithm>

namespace plimsoll {

Result<RankDevices> RankDevices::of_ranks(std::vector<KnownDevice> kinds, std::vector<size_t> kind_of_rank) {
  RankDevices devices(kinds.front());
  if (kinds.size() == 1) return devices;
  std::vector<DeviceDescription> descriptions;
  std::vector<std::shared_ptr<const KernelCatalog>> catalogs;
  for (const KnownDevice& kind : kinds) {
    if (kind.device.backend != kinds.front().device.backend)
      return usage_error(kinds.front().device.name + " and " + kind.device.name +
                         " cannot share a job: one is a GPU and one is not");
    descriptions.push_back(kind.device);
    catalogs.push_back(kind.catalog);
  }
  devices.common_ = {least_of(descriptions), common_catalog(std::move(catalogs))};
  devices.kinds_ = std::move(kinds);
  devices.kind_of_rank_ = std::move(kind_of_rank);
  return devices;
}

Result<RankDevices> RankDevices::linked(const ClusterDescription& cluster, const Mesh& mesh) const {
  RankDevices devices = *this;
  for (KnownDevice& kind : devices.kinds_) {
    Result<DeviceDescription> device = on_cluster(std::move(kind.device), cluster, mesh);
    if (!device) return device.takeError();
    kind.device = std::move(*device);
  }
  Result<DeviceDescription> common = on_cluster(std::move(devices.common_.device), cluster, mesh);
  if (!common) return common.takeError();
  devices.common_.device = std::move(*common);
  return devices;
}

Result<StageDevices> RankDevices::on(const Mesh& mesh) const {
  if (!are_unlike()) return StageDevices(common_.device, *common_.catalog);
  if (mesh.ranks() != static_cast<int64_t>(kind_of_rank_.size()))
    return usage_error("the mesh " + to_string(mesh) + " has " + llvm::Twine(mesh.ranks()) + " ranks, there are " +
                       llvm::Twine(kind_of_rank_.size()) + " devices");
  if (mesh[MeshAxis::Stage] == 1) return StageDevices(common_.device, *common_.catalog);
  if (Status s = check_stages(mesh)) return s;
  std::vector<StageDevice> by_stage;
  for (size_t rank = 0; rank < kind_of_rank_.size(); rank += static_cast<size_t>(mesh.ranks_per_stage())) {
    const KnownDevice& kind = kinds_[kind_of_rank_[rank]];
    by_stage.push_back({kind.device, kind.catalog.get()});
  }
  return StageDevices(std::move(by_stage));
}

Status RankDevices::check_stages(const Mesh& mesh) const {
  const auto per_stage = static_cast<size_t>(mesh.ranks_per_stage());
  const auto name = [&](size_t rank) { return kinds_[kind_of_rank_[rank]].device.name; };
  for (size_t first = 0; first < kind_of_rank_.size(); first += per_stage)
    for (size_t rank = first + 1; rank < first + per_stage; ++rank) {
      if (kind_of_rank_[rank] == kind_of_rank_[first]) continue;
      std::vector<size_t> sorted = kind_of_rank_;
      llvm::sort(sorted);
      bool works = true;
      std::string order;
      for (size_t i = 0; i < sorted.size(); ++i) {
        works &= sorted[i] == sorted[i - i % per_stage];
        order += (i == 0 ? "" : ",") + kinds_[sorted[i]].device.name;
      }
      return usage_error("stage " + llvm::Twine(first / per_stage) + " of " + to_string(mesh) + " has " + name(first) +
                         " and " + name(rank) + ", and ranks of one stage run one plan; " +
                         (works ? "list the devices as " + order
                                : "in no order of the devices is each stage of one kind: take a stage for each rank, "
                                  "or none"));
    }
  return Status::success();
}

std::vector<RankKind> RankDevices::kinds_of_ranks(const TrainingRequest& request,
                                                  llvm::ArrayRef<int64_t> budgets) const {
  std::vector<RankKind> kinds;
  if (!are_unlike()) return kinds;
  for (const KnownDevice& kind : kinds_) kinds.push_back({kind.device, 0, {}});
  for (size_t rank = 0; rank < kind_of_rank_.size(); ++rank) {
    RankKind& kind = kinds[kind_of_rank_[rank]];
    const int64_t bytes = budgets.empty() ? request.budget_of_stage(0, kind.device) : budgets[rank];
    kind.budget_bytes = kind.ranks.empty() ? bytes : std::min(kind.budget_bytes, bytes);
    kind.ranks.push_back(static_cast<int64_t>(rank));
  }
  return kinds;
}

Result<TrainingRequest> with_rank_budgets(TrainingRequest request, llvm::ArrayRef<int64_t> budgets) {
  if (budgets.empty()) return request;
  if (request.mesh.ranks() != static_cast<int64_t>(budgets.size()))
    return usage_error("there are " + llvm::Twine(budgets.size()) + " budgets, and " +
                       llvm::Twine(request.mesh.ranks()) + (request.mesh.ranks() == 1 ? " rank" : " ranks"));
  const auto per_stage = static_cast<size_t>(request.mesh.ranks_per_stage());
  std::vector<int64_t> least;
  for (size_t first = 0; first < budgets.size(); first += per_stage)
    least.push_back(*std::min_element(budgets.begin() + first, budgets.begin() + first + per_stage));
  if (least.size() == 1)
    request.budget_bytes = least.front();
  else
    request.stage_budgets = std::move(least);
  return request;
}

}  // namespace plimsoll
