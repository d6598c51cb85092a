#pragma once

// Saves trained weights in file formats that other programs read.

#include "runtime/session.h"

namespace plimsoll {

// Checks before hours of training that each file can be written. An ONNX file needs the graph of the model that the
// weights came from.
Status check_save_targets(llvm::ArrayRef<std::string> paths, llvm::StringRef weights);

// Saves parameters and buffers under their names in the model: the same file whatever the mesh. Every rank calls it;
// the first one writes. Reads `model_path` for .onnx only; weights that the plan does not have keep their values. If
// the model has external weights, or more than 1 GiB of them, they go to PATH.data.
Status save_states(Session& session, const std::string& path, const std::string& model_path);

}  // namespace plimsoll
