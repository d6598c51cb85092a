#pragma once

#include "frontend/onnx/model.h"

namespace plimsoll {

// A dimension without a size of an input that is no weight.
struct OpenDim {
  std::string name;    // the model's, or "input.axis" where it has none
  std::string input;   // the first that has it
  bool leads = false;  // it is the first dimension of an input, and so most likely counts samples
};
// Each name once, in the order of the inputs.
std::vector<OpenDim> open_dims(const onnx::GraphProto& graph);

// The name of one dimension as above; empty: it has a size.
std::string open_dim_name(const onnx::ValueInfoProto& value, int axis);

}  // namespace plimsoll
