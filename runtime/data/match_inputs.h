#pragma once

// Which field of a data set feeds which input of a plan.

#include "runtime/data/dataset.h"

namespace plimsoll {

// Rows of the batch: the first dimension that most inputs share, one where all have one row.
int64_t rows_of_batch(llvm::ArrayRef<InputSpec> inputs);
// Whether the input has a row per sample. Other inputs hold the same for all samples: scalars, or one row.
bool has_rows_of_samples(const InputSpec& input, llvm::ArrayRef<InputSpec> inputs);
// Whether the name says that the input holds what the model should say: labels or targets.
bool holds_labels(const InputSpec& input);

// The field of each input, by name. An error names the input, what the data have and what the plan needs. Numbers of
// another dtype are taken where both are integers or both are floats.
Result<std::vector<size_t>> match_inputs(const Dataset& data, llvm::ArrayRef<InputSpec> inputs);

// Copies numbers into another dtype of the same kind. An integer that the dtype does not hold is an error.
Status convert(const TensorView& from, const TensorView& to);

}  // namespace plimsoll
