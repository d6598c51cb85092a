#pragma once

// Batches of a data set, read ahead by threads into a bounded ring, so that a step finds its batch ready.

#include "runtime/data/dataset.h"

namespace plimsoll {

// Reads the fields that `inputs` ask for by name. Batch n holds the samples at places n * rows to n * rows + rows - 1
// of its epoch's order, and each rank reads its own rows of it.
Result<std::unique_ptr<BatchSource>> load_batches(std::unique_ptr<Dataset> data, llvm::ArrayRef<InputSpec> inputs,
                                                  const DataOptions& options);

// Threads that read batches of so many bytes from files, in so many reads of a sample's values of one input, where
// neither the data nor the user say how many.
int threads_for_batch(int64_t bytes, int64_t reads, int cores);

}  // namespace plimsoll
