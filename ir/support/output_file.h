#pragma once

// Writing a file so that nobody ever sees half of it under its name.

#include "ir/support/status.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"

namespace plimsoll {

// Lets `write` fill a temporary file beside `path`, makes it durable, and renames it. When `write` fails or
// the program is interrupted, `path` is as it was and the temporary file is gone.
Status write_output_file(llvm::StringRef path, llvm::function_ref<Status(llvm::raw_ostream&)> write);

}  // namespace plimsoll
