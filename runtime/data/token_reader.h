#pragma once

// A flat file of token numbers as training data for language models.

#include "runtime/data/batch_source.h"

namespace plimsoll {

int64_t bytes_per_token(llvm::StringRef path);  // by the name: 4 with u32 or uint32 in it, else 2

// Fills [rows, time] integer inputs with random windows of the file, by a reader thread that stays one batch ahead. Of
// two inputs the one whose name says so ("label", "target") holds the window shifted by one token. An input named like
// an attention mask is filled with ones, one named like positions counts up; these two may have one row for all
// samples. Windows are drawn by Philox from the seed: the same seed gives the same batches.
Result<std::unique_ptr<BatchSource>> open_token_file(llvm::StringRef path, llvm::ArrayRef<InputSpec> inputs,
                                                     const DataOptions& options);

}  // namespace plimsoll
