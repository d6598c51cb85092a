#pragma once

#include "ir/support/status.h"

#include "llvm/ADT/StringRef.h"

namespace plimsoll {

// Fails with Fault::System unless the process can map `bytes` more of memory now. For the sake of libraries that crash
// where memory is refused to them; what they take afterwards is not reserved. Takes about a microsecond.
Status check_free_memory(int64_t bytes, llvm::StringRef what);

}  // namespace plimsoll
