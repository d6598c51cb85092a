#pragma once

// Which device is meant: by name, from a file of descriptions, or the one in this machine.

#include "ir/machine/device.h"

namespace plimsoll {

// Empty `file`: the descriptions that come with the program.
Result<DeviceCatalog> known_devices(llvm::StringRef file);

// "auto" is the card in this machine where there is one, else cpu.
Result<DeviceDescription> find_device(llvm::StringRef name, llvm::StringRef file);

// The description of the card in this machine, by its name. An error says why there is none: no driver, no card, no
// description.
Result<DeviceDescription> find_card_here(const DeviceCatalog& devices);

// Bytes of memory of this machine itself.
int64_t memory_here();

// Measures the card in this machine, a few seconds.
Result<DeviceDescription> measure_card_here();

}  // namespace plimsoll
