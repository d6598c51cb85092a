#pragma once

// Whether the integers of a data set name rows of the model's tables and classes of its loss.

#include "runtime/data/dataset.h"

namespace plimsoll {

// Of one sample's row of the input. The error names the element and how many classes or rows there are; `where` is the
// sample's place.
Status check_numbers(const InputSpec& input, const TensorView& row, llvm::function_ref<std::string()> where);

// Reads labels until all samples are looked at or a moment has passed; what is left is checked as it is read.
// `fields` has the field of each input.
Status check_labels(const Dataset& data, llvm::ArrayRef<InputSpec> inputs, llvm::ArrayRef<size_t> fields);

}  // namespace plimsoll
