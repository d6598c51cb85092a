#pragma once

// Saves trained weights in file formats that other programs read.

#include "runtime/session.h"

namespace plimsoll {

// What a saved file has beside the trained numbers. Either may be empty.
struct SaveSources {
  std::string model;  // an .onnx file: the graph, all names that its weights have, and weights that the plan lacks
  std::string first;  // which the first values were read from: all digits of what the plan has in fewer bytes
};

// Checks before hours of training that each file can be written and is none of `inputs`. An ONNX file needs a model.
Status check_save_targets(llvm::ArrayRef<std::string> paths, llvm::StringRef model,
                          llvm::ArrayRef<llvm::StringRef> inputs = {});
// Checks before hours of training that the sources have what the plan lacks: the model its weights, for an ONNX file
// also the values of all others, and the first values what the plan has in 4 or 8 bits.
Status check_save_sources(llvm::ArrayRef<std::string> paths, const SaveSources& sources, const Plan& plan);

enum class SavedWeights : uint8_t {
  Trained,
  Mean,  // of parameters that have one, their running mean; the others as they are
};

// Saves parameters and buffers under their names in the model: the same file whatever the mesh. Every rank calls it;
// the first one writes. With a model, .safetensors also has the names of tied parameters and of batch norms' counters
// that PyTorch's load_state_dict(strict=True) asks for. An .onnx file is the model for inference: batch norms use the
// running statistics, and weights that the plan does not have keep their values. If the model has external weights, or
// more than 1 GiB of them, they go to PATH.data.
Status save_states(Session& session, const std::string& path, const SaveSources& sources,
                   SavedWeights which = SavedWeights::Trained);

// A lower bound of what one file with the weights of a model takes, known before there is a plan: some jobs keep 32-bit
// weights in 16 bits.
Result<int64_t> min_weight_bytes(llvm::StringRef model_path);

// Does the plan keep a running mean of the weights (--ema)?
bool has_mean_weights(const Session& session);

}  // namespace plimsoll
