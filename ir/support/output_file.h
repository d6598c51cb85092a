#pragma once

// Writing a file so that nobody ever sees half of it under its name.

#include "ir/support/status.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"

namespace plimsoll {

// Says before long work what would keep write_output_file from writing `path`, or should: what stands there is no
// regular file (a device, a fifo, a folder, a symbolic link, whose target would be cut off), it is one of the files
// `inputs`, or its folder cannot be written to.
Status check_output_file(llvm::StringRef path, llvm::ArrayRef<llvm::StringRef> inputs = {});
Status check_not_an_input(llvm::StringRef path, llvm::ArrayRef<llvm::StringRef> inputs);

// Lets `write` fill a temporary file beside `path`, makes it durable, and renames it. When `write` fails or
// the program is interrupted, `path` is as it was and the temporary file is gone.
Status write_output_file(llvm::StringRef path, llvm::function_ref<Status(llvm::raw_ostream&)> write);

}  // namespace plimsoll
