#pragma once

// A flat file of token numbers as training data for language models.

#include "runtime/data/batch_source.h"

namespace plimsoll {

int64_t bytes_per_token(llvm::StringRef path);  // by the name: 4 with u32 or uint32 in it, else 2

// Fills [rows, time] integer inputs with random windows of the file, by a reader thread that stays one batch ahead. The
// input that the plan or else its name ("label", "target") calls labels holds what the loss needs to predict the token
// after each position: that token, or the window itself where the model shifts labels. Where the plan does not show
// which, `options.labels` has to say it. An input named like an attention mask is filled with ones, one named like
// positions counts up; these two may have one row for all samples. Windows are drawn by Philox from the seed: the same
// seed gives the same batches. Text, archives and tables are refused, and so are tokens that the model does not have.
Result<std::unique_ptr<BatchSource>> open_token_file(llvm::StringRef path, llvm::ArrayRef<InputSpec> inputs,
                                                     const DataOptions& options);

}  // namespace plimsoll
