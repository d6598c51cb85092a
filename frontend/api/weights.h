#pragma once

// The weights of a model's file or of a safetensors file, in the types that a plan has them in.

#include "runtime/session.h"

namespace plimsoll {

// The weights of a file by name, as a session asks for them. A float weight that the file has in another float type is
// converted a few elements at a time. Several threads may read ranges at once.
struct Weights {
  WeightLoader load;
  WeightRangeLoader load_range;  // of a file that holds bytes in order, it reads the asked ones alone
  std::function<std::optional<Type>(llvm::StringRef name)> type_of;  // in the file; none where it lacks the weight
};
// Of an .onnx or .safetensors file, which the loaders keep.
Result<Weights> open_weights(const std::string& path);

// Copies elements of a weight in the type of the file to `into`, from `first` on. Several threads call it at once.
using ReadRange = llvm::function_ref<Status(int64_t first, const TensorView& into)>;
// Elements that read_converted() asks for at most at once.
inline constexpr int64_t elements_converted_at_once = int64_t{1} << 18;
// Fills `into` with the elements from `first` on of a weight that is of dtype `stored`.
Status read_converted(DType stored, int64_t first, const TensorView& into, ReadRange read);

}  // namespace plimsoll
