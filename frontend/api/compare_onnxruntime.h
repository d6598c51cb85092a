#pragma once

// Compares the forward values of a model as it is imported here with those that ONNX Runtime computes.

#include "frontend/api/verify.h"

namespace plimsoll {

struct RuntimeComparison {
  std::string version;                    // of ONNX Runtime
  std::vector<TensorDifference> tensors;  // in the order of the graph
  size_t random = 0;                      // values left out because they depend on random numbers
};

// Runs the model on the first batch of `start`, with its own weights, as its operators say and not as training changes
// them: by the reference interpreter, and by ONNX Runtime in Python (`python3`, in which `onnxruntime` must be
// installed). Compares every float value that has the same name in both; of a model with external data, which cannot be
// written elsewhere with more outputs, the outputs alone. Errors: there is no ONNX Runtime, or it refuses the model.
Result<RuntimeComparison> compare_with_onnxruntime(const Plan& plan, const std::string& model_path,
                                                   const StepStart& start);

}  // namespace plimsoll
