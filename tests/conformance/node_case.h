#pragma once

// One case of the ONNX project's backend node tests: a folder with model.onnx and data sets of inputs and
// expected outputs.

#include "frontend/onnx/import.h"

namespace plimsoll::conformance {

enum class Outcome : uint8_t {
  Passed,
  Declined,  // refused with a clear message
  Failed,    // a wrong result
};

struct Verdict {
  Outcome outcome;
  std::string reason;  // empty when passed
};

// Computes a graph's outputs on inputs and states.
using Backend = Result<std::vector<Tensor>> (*)(const Graph& graph, const std::map<ValueId, const Tensor*>& bindings);

// The operator a case is about. Those with more than one node are named after their twin that is a single node, or the
// last node that does something.
std::string operator_of(const std::string& folder);

// True when some input or output is a sequence, an optional, or has elements that are no numbers.
bool has_other_than_tensors(const std::string& folder);

Verdict run_case(const std::string& folder, Backend backend);

}  // namespace plimsoll::conformance
