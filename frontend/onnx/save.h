#pragma once

// A copy of a model with other weights in it.

#include "frontend/onnx/model.h"

namespace plimsoll {

// The new value of an initializer; no tensor keeps the one the model has.
using NewWeight = llvm::function_ref<Result<std::optional<Tensor>>(llvm::StringRef initializer)>;

// Writes `path`, and `path`.data beside it when the model keeps weights in external files or has too many for
// one file. One weight is in memory at a time in that case. Files appear under their final names only when complete.
Status save_model(const Model& model, llvm::StringRef path, NewWeight new_weight);

}  // namespace plimsoll
