#pragma once

// Data sets of tensors whose first dimension counts samples: safetensors, .npz and .npy, one file or a folder of
// shards.

#include "runtime/data/dataset.h"

namespace plimsoll {

bool is_tensor_file(llvm::StringRef path);  // by the name

// A field per tensor. The samples of shards follow each other in the order of the files' names; shards have the same
// tensors. Samples are counted by the tensors that feed `inputs` row by row, without inputs by the first dimension that
// most tensors have; other tensors are whole. A safetensors file is read as samples are asked for, the others are kept
// in memory. A .npy file's array has no name: it feeds the only input.
Result<std::unique_ptr<Dataset>> open_tensor_files(llvm::StringRef path, llvm::ArrayRef<InputSpec> inputs);

}  // namespace plimsoll
