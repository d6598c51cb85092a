#include "runtime/data/check_numbers.h"

#include "runtime/data/match_inputs.h"
#include "runtime/data/padding.h"

#include <chrono>

namespace plimsoll {
namespace {

using Clock = std::chrono::steady_clock;

// A run that cannot train should say so in its first second.
constexpr std::chrono::milliseconds longest_check(500);

bool is_label_of_samples(const Dataset& data, const InputSpec& input, size_t field) {
  const bool is_label = holds_labels(input) || (input.index && input.index->is_label && !input.index->is_token);
  return is_label && data.fields()[field].per_sample;
}

}  // namespace

Status check_numbers(const InputSpec& input, const TensorView& row, llvm::function_ref<std::string()> where) {
  if (!input.index || input.index->count == 0 || !is_integer(row.type.dtype)) return Status::success();
  const IndexInput& index = *input.index;
  for (int64_t i = 0; i < row.elements(); ++i) {
    const int64_t number = row.get_int(i);
    if (number >= 0 && number < index.count) continue;
    if (index.is_label && (number == ignored_label || number == ignored_label_of(input))) continue;
    return model_error(where() + ": '" + input.name + "' is " + llvm::Twine(number) +
                       (row.elements() > 1 ? " at element " + llvm::Twine(i) : llvm::Twine()) + ", the model has " +
                       llvm::Twine(index.count) + (index.is_label ? " classes" : " rows for it"));
  }
  return Status::success();
}

Status check_labels(const Dataset& data, llvm::ArrayRef<InputSpec> inputs, llvm::ArrayRef<size_t> fields) {
  if (data.makes_labels()) return Status::success();
  const Clock::time_point end = Clock::now() + longest_check;
  ReadBuffers buffers;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!is_label_of_samples(data, inputs[i], fields[i])) continue;
    const Tensor row(data.fields()[fields[i]].type);
    for (int64_t sample = 0; sample < data.samples() && Clock::now() < end; ++sample) {
      if (Status s = data.read(sample, fields[i], row.view(), {0, 0, 0}, buffers)) return s;
      if (Status s = check_numbers(inputs[i], row.view(), [&] { return data.where_is(sample); })) return s;
    }
  }
  return Status::success();
}

}  // namespace plimsoll
