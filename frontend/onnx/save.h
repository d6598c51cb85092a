#pragma once

// Saves a copy of a model with other weights.

#include "frontend/onnx/model.h"

namespace plimsoll {

// Returns the new value of an initializer, or none to keep the value in the model.
using NewWeight = llvm::function_ref<Result<std::optional<Tensor>>(llvm::StringRef initializer)>;

// Writes `path`, with batch norms and dropout in inference mode. If the model has external weights, or too many for one
// file, they go to `path`.data, one weight in memory at a time. Files appear under their final names only when they are
// complete.
Status save_model(const Model& model, llvm::StringRef path, NewWeight new_weight);

}  // namespace plimsoll
