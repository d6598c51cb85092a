#pragma once

// Random graphs that are compiled within budgets and trained, for tests of passes/budget and passes/offload.

#include "passes/compile.h"
#include "tests/support/random_values.h"

#include <map>
#include <random>

namespace plimsoll::testing {

// Layers have random kinds and widths, some with a branch that joins later, and dropout.
std::string random_model(std::mt19937& random);

// A CPU without reserves.
DeviceDescription small_device();
// A device whose host has its own memory, with a link so fast that small tensors are worth copying.
DeviceDescription device_with_host();

// Compiles without splits, with remats and copies only.
Result<CompileResult> result_for(const DeviceDescription& device, const std::string& text,
                                 const TrainingRequest& asked);
Result<Plan> compiled_for(const DeviceDescription& device, const std::string& text, const TrainingRequest& asked);
// For the small device.
Result<Plan> compiled(const std::string& text, int64_t budget, bool recompute = true);

struct Trace {
  std::vector<double> losses;
  std::map<std::string, Tensor> gradients;
  bool operator==(const Trace&) const = default;
};

// Three steps with dead bytes poisoned, and the gradients of the first.
Trace train(Plan plan, const std::string& text, bool late_copies = false);

}  // namespace plimsoll::testing
