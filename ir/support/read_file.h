#pragma once

// Reading whole files that come from outside.

#include "ir/support/status.h"

#include "llvm/ADT/StringRef.h"
#include "llvm/Support/MemoryBuffer.h"

#include <memory>

namespace plimsoll {

// The bytes of a regular file, perhaps mapped. A fifo, a socket or a device is an error, because reading one may wait
// for ever. Fault::System.
Result<std::unique_ptr<llvm::MemoryBuffer>> read_file(llvm::StringRef path);

}  // namespace plimsoll
