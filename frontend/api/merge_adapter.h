#pragma once

// Adapters into the weights of a model, so that programs which know nothing of adapters run it.

#include "frontend/onnx/import.h"

namespace plimsoll {

struct MergeRequest {
  std::string model;    // an .onnx file, whose graph says how layers read their weights
  std::string weights;  // an .onnx or .safetensors file; empty: those of the model
  std::string adapter;  // a folder or a file (frontend/api/adapter_file.h)
  std::string output;   // .onnx or .safetensors
  ImportOptions import;
  std::optional<std::string> root;  // what names of weights begin with and paths of modules do not; none: by the file
};

struct MergeResult {
  int64_t modules = 0;  // whose adapters were added to their weights
  int64_t whole = 0;    // parameters that the file has whole
  double largest_change = 0;
  std::string most_changed;  // the weight with the largest change
};

// W + scale * B A in each adapted weight, computed in f64 and rounded once to the weight's type. One weight is in
// memory at a time. Errors: an adapter of a layer that the model lacks or that has other sizes; of one whose weight
// another layer reads too, which would change with it; of a convolution with groups; a sum that is not finite.
Result<MergeResult> merge_adapter(const MergeRequest& request);

}  // namespace plimsoll
