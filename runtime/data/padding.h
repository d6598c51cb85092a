#pragma once

// Samples of differing lengths become rows of the plan's length: padded behind or before their end, or cut, with masks
// that say which elements are a sample's own.

#include "runtime/data/dataset.h"

namespace plimsoll {

// The label that counts nothing: the one that the model's graph shows, else PyTorch's.
int64_t ignored_label_of(const InputSpec& input);
// Whether the input holds integer labels, of which one may count nothing.
bool holds_class_labels(const InputSpec& input);

// Whether samples of the data differ in length where they feed an input.
bool has_lengths(const Dataset& data, llvm::ArrayRef<InputSpec> inputs);

// `data` with a field for each input. Where the data have samples of differing lengths, an input [rows, length, ...]
// gives the length. An input that the data lack is a mask if `padding` names it, or if its own name says so and
// `padding` names none: 1 at a sample's elements and 0 at the padding. Errors name the sample that is longer.
Result<std::unique_ptr<Dataset>> pad_samples(std::unique_ptr<Dataset> data, llvm::ArrayRef<InputSpec> inputs,
                                             const Padding& padding);

}  // namespace plimsoll
