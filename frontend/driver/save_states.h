#pragma once

// Trained weights back into files that others read.

#include "runtime/session.h"

namespace plimsoll {

// Before hours of training: can each file be written at all? ONNX files need the graph, which comes from the
// model that the weights came from.
Status check_save_targets(llvm::ArrayRef<std::string> paths, llvm::StringRef weights);

// Parameters and buffers under their names in the model. `model_path` is read for .onnx only; what the plan
// does not train keeps its bytes. Where the model keeps weights beside itself, or has more than 1 GiB of them, they go
// to PATH.data.
Status save_states(Session& session, const std::string& path, const std::string& model_path);

}  // namespace plimsoll
