#pragma once

// What several unlike devices can all do: the device that one plan for all of them is made for.

#include "ir/machine/device.h"
#include "ir/machine/kernel_catalog.h"

#include "llvm/ADT/ArrayRef.h"

#include <memory>
#include <vector>

namespace plimsoll {

// In each field what the least of the devices has: the fewest bytes and the lowest rate, the longest time and the
// largest reserve. The devices, of which there is at least one, have one backend. Its name joins theirs:
// "h200+rtx4090".
DeviceDescription least_of(llvm::ArrayRef<DeviceDescription> devices);

// The candidates that every catalog has for a call, in the order of the first one, each with the largest workspace and
// the longest time. Where one catalog predicts no time, the roofline decides. All accept every call by their last
// candidate, which they have in common.
std::unique_ptr<KernelCatalog> common_catalog(std::vector<std::shared_ptr<const KernelCatalog>> catalogs);

}  // namespace plimsoll
