#pragma once

// What the stages of a pipeline run on: one kind of device for all of them, or one for each. A job without stages is
// one stage.

#include "ir/machine/device.h"
#include "ir/machine/kernel_catalog.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"

#include <algorithm>

namespace plimsoll {

// A device with the kernels that can run on it. Both outlive this.
struct StageDevice {
  const DeviceDescription* device;
  const KernelCatalog* catalog;
};

class StageDevices {
 public:
  // All stages run on the same kind of device.
  StageDevices(const DeviceDescription& device, const KernelCatalog& catalog) : by_stage_{{&device, &catalog}} {}
  // One device for each stage, in their order.
  explicit StageDevices(llvm::ArrayRef<StageDevice> by_stage) : by_stage_(by_stage.begin(), by_stage.end()) {}

  const DeviceDescription& device(size_t stage) const { return *of(stage).device; }
  const KernelCatalog& catalog(size_t stage) const { return *of(stage).catalog; }

  // Stages with one kind of device share its object.
  bool are_alike(size_t stage, size_t other) const { return of(stage).device == of(other).device; }

  // What the forward graph prefers, which all stages share: the forms that are faster on each of the devices.
  KernelPreferences preferences() const {
    KernelPreferences all = catalog(0).preferences();
    for (const StageDevice& each : by_stage_) {
      const KernelPreferences own = each.catalog->preferences();
      all.channels_last &= own.channels_last;
      all.product_multiple = std::max(all.product_multiple, own.product_multiple);
      all.product_epilogues &= own.product_epilogues;
    }
    return all;
  }

 private:
  const StageDevice& of(size_t stage) const { return by_stage_[by_stage_.size() == 1 ? 0 : stage]; }

  llvm::SmallVector<StageDevice, 1> by_stage_;
};

}  // namespace plimsoll
