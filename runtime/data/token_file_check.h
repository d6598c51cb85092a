#pragma once

// Tells files of token numbers from files that would only train as if they were.

#include "runtime/data/input_file.h"

namespace plimsoll {

// Refuses names that belong to text, tables, archives and other formats.
Status check_name_of_token_file(llvm::StringRef path);

// Refuses files whose first bytes are those of another format, of text, or of 32-bit numbers where tokens of
// `token_bytes` are read.
Status check_bytes_of_token_file(const InputFile& file, int64_t token_bytes);

}  // namespace plimsoll
