#include "runtime/data/match_inputs.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {
namespace {

std::string list_names(llvm::ArrayRef<Field> fields) {
  std::string text;
  for (const Field& field : fields)
    text += (text.empty() ? "" : ", ") + (field.name.empty() ? "one unnamed array" : field.name);
  return text;
}

// What the field has to be for the input, its dtype aside.
Status check_shape(const Dataset& data, const Field& field, const InputSpec& input, bool per_sample) {
  const llvm::ArrayRef<int64_t> shape = input.type.shape;
  const bool same_kind = is_float(field.type.dtype) == is_float(input.type.dtype);
  const bool fits =
      field.per_sample == per_sample && llvm::ArrayRef<int64_t>(field.type.shape) == shape.drop_front(per_sample);
  if (fits && same_kind) return Status::success();
  const Type needed(input.type.dtype, shape.drop_front(per_sample));
  return model_error(data.where() + ": input '" + input.name + "' is " + to_string(field.type) +
                     (field.per_sample ? " per sample" : " for all samples") + ", the plan needs " + to_string(needed) +
                     (per_sample ? " per sample" : " for all samples"));
}

}  // namespace

int64_t rows_of_batch(llvm::ArrayRef<InputSpec> inputs) {
  int64_t rows = 1;
  std::ptrdiff_t most = 0;
  auto leads = [](const InputSpec& input, int64_t count) {
    return !input.whole && input.type.rank() > 0 && input.type.shape[0] == count;
  };
  for (const InputSpec& input : inputs) {
    if (input.whole || input.type.rank() == 0 || input.type.shape[0] < 2) continue;
    const int64_t candidate = input.type.shape[0];
    const std::ptrdiff_t count =
        llvm::count_if(inputs, [&](const InputSpec& other) { return leads(other, candidate); });
    if (count > most) rows = candidate, most = count;
  }
  return rows;
}

bool has_rows_of_samples(const InputSpec& input, llvm::ArrayRef<InputSpec> inputs) {
  return !input.whole && input.type.rank() > 0 && input.type.shape[0] == rows_of_batch(inputs);
}

bool holds_labels(const InputSpec& input) {
  const std::string name = llvm::StringRef(input.name).lower();
  return llvm::StringRef(name).contains("label") || llvm::StringRef(name).contains("target");
}

Result<std::vector<size_t>> match_inputs(const Dataset& data, llvm::ArrayRef<InputSpec> inputs) {
  std::vector<size_t> matches;
  for (const InputSpec& input : inputs) {
    const auto found = llvm::find_if(data.fields(), [&](const Field& field) { return field.name == input.name; });
    if (found == data.fields().end())
      return model_error(data.where() + ": has no tensor '" + input.name + "' for the plan's input " +
                         to_string(input.type) + "; it has " + list_names(data.fields()));
    // A batch of one row may have inputs that are the same for all samples.
    const bool per_sample = has_rows_of_samples(input, inputs) && (found->per_sample || input.type.shape[0] > 1);
    if (Status s = check_shape(data, *found, input, per_sample)) return s;
    matches.push_back(static_cast<size_t>(found - data.fields().begin()));
  }
  return matches;
}

Status convert(const TensorView& from, const TensorView& to) {
  for (int64_t i = 0; i < to.elements(); ++i) {
    if (is_float(to.type.dtype)) {
      to.set(i, from.get(i));
      continue;
    }
    to.set_int(i, from.get_int(i));
    if (to.get_int(i) != from.get_int(i))
      return model_error(llvm::Twine(from.get_int(i)) + " does not fit " + dtype_name(to.type.dtype));
  }
  return Status::success();
}

}  // namespace plimsoll
