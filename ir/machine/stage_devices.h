#pragma once

// What the stages of a pipeline run on: one kind of device for all of them, or one for each. A job without stages is
// one stage.

#include "ir/machine/device.h"
#include "ir/machine/kernel_catalog.h"

#include <vector>

namespace plimsoll {

// A device with the kernels that can run on it. The catalog outlives this; devices of one kind share it.
struct StageDevice {
  DeviceDescription device;
  const KernelCatalog* catalog;
};

class StageDevices {
 public:
  // All stages run on the same kind of device.
  StageDevices(const DeviceDescription& device, const KernelCatalog& catalog) : by_stage_{{device, &catalog}} {}
  // One device for each stage, in their order.
  explicit StageDevices(std::vector<StageDevice> by_stage) : by_stage_(std::move(by_stage)) {}

  const DeviceDescription& device(size_t stage) const { return of(stage).device; }
  const KernelCatalog& catalog(size_t stage) const { return *of(stage).catalog; }
  bool are_alike(size_t stage, size_t other) const { return of(stage).catalog == of(other).catalog; }

  // The same with less memory for plans.
  StageDevices with_reserve(const Reserve& held_back) const {
    StageDevices all = *this;
    for (StageDevice& each : all.by_stage_) each.device.reserves.push_back(held_back);
    return all;
  }

  // For the forward graph, which all stages share.
  KernelPreferences preferences() const {
    KernelPreferences all = catalog(0).preferences();
    for (const StageDevice& each : by_stage_) all = all.with(each.catalog->preferences());
    return all;
  }

 private:
  const StageDevice& of(size_t stage) const { return by_stage_[by_stage_.size() == 1 ? 0 : stage]; }

  std::vector<StageDevice> by_stage_;
};

}  // namespace plimsoll
