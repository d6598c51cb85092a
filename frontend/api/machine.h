#pragma once

// Finds a device description: by name, in a file, or for the device in this machine.

#include "ir/machine/device.h"

namespace plimsoll {

// Returns the descriptions that are part of the program, extended by those of `file` unless it is empty.
Result<DeviceCatalog> known_devices(llvm::StringRef file);

// "auto" is the GPU in this machine if there is one, else cpu.
Result<DeviceDescription> find_device(llvm::StringRef name, llvm::StringRef file);

// The descriptions of the names, or all that are known if there are no names.
Result<std::vector<DeviceDescription>> devices_named(llvm::ArrayRef<std::string> names, llvm::StringRef file);

// Returns the description of the GPU in this machine. The error says why there is none: no driver, no GPU, or no
// description.
Result<DeviceDescription> find_card_here(const DeviceCatalog& devices);

// Returns the name of this machine's processor, as the system has it.
std::string processor_here();

// Returns the bytes of this machine's memory.
int64_t memory_here();

// Returns the bytes of memory that this process may still take: what the system counts as available, and not more than
// a container's limit leaves.
int64_t available_memory_here();

// Measures the GPU in this machine, which takes a few seconds.
Result<DeviceDescription> measure_card_here();

}  // namespace plimsoll
