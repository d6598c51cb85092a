#pragma once

// Files of token numbers as training data for language models: their windows are the samples.

#include "runtime/data/dataset.h"

namespace plimsoll {

int64_t bytes_per_token(llvm::StringRef path);  // by the file's name: 4 with u32 or uint32 in it, else 2

struct NamedTokenFile {
  std::string path;
  double weight = 1;  // how often an epoch reads each of its windows
};
// "a.bin:2,b.bin"; a file whose own name has commas or colons is taken by this name.
Result<std::vector<NamedTokenFile>> token_files_named(llvm::StringRef text);

// Windows of `time` tokens for inputs of [rows, time], one behind the other, each of them once an epoch. `path` names
// one file, or several as above; of FILE:2 each window is read twice an epoch, of FILE:0.5 half of the windows.
//
// An input that the plan knows as labels holds the window's tokens, or the ones after them where the model does not
// shift labels itself; without such knowledge the names "label" and "target" say so. An input named like an attention
// mask is filled with ones, one named like positions counts up; these two may have one row for all samples. With
// DataOptions::document_end no window crosses the end of a document: behind it the window has this token, labels that
// are ignored, and zeros in the mask.
//
// A token that the model does not have is an error that names its place.
Result<std::unique_ptr<Dataset>> open_token_files(llvm::StringRef path, llvm::ArrayRef<InputSpec> inputs,
                                                  const DataOptions& options);

}  // namespace plimsoll
