#pragma once

// Batches of a data set, read ahead by threads into a bounded ring, so that a step finds its batch ready.

#include "runtime/data/dataset.h"

namespace plimsoll {

// Reads the fields that `inputs` ask for by name. Batch n holds the samples at places n * rows to n * rows + rows - 1
// of its epoch's order, and each rank reads its own rows of it.
Result<std::unique_ptr<BatchSource>> load_batches(std::unique_ptr<Dataset> data, llvm::ArrayRef<InputSpec> inputs,
                                                  const DataOptions& options);

}  // namespace plimsoll
