#pragma once

// One case of the ONNX project's backend node tests: a folder with model.onnx, inputs and expected outputs.

#include "frontend/onnx/import.h"

namespace plimsoll::conformance {

enum class Outcome : uint8_t {
  Passed,
  Declined,  // refused with a clear message
  Failed,    // a wrong result
};

struct Verdict {
  Outcome outcome;
  std::string reason;  // empty if the case passed
};

// Computes a graph's outputs from inputs and states.
using Backend = Result<std::vector<Tensor>> (*)(const Graph& graph, const std::map<ValueId, const Tensor*>& bindings);

// Returns the operator that a case tests. For several nodes it is the operator of the same case with a single node, or
// of the last node that is no identity.
std::string operator_of(const std::string& folder);

// True if an input or output is a sequence or an optional, or has elements that are not numbers.
bool has_other_than_tensors(const std::string& folder);

Verdict run_case(const std::string& folder, Backend backend);

}  // namespace plimsoll::conformance
