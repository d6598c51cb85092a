#pragma once

// Calls for which a device has no kernel near the usual speed: a plan takes them, and says so.

#include "ir/plan/plan.h"
#include "passes/analysis/cost_model.h"

#include <map>
#include <string>

namespace plimsoll {

class SlowKernels {
 public:
  // `usual` is what kernels of the op usually cost on the device. Notes an instruction that takes many times as long,
  // or whose op runs on the host of a GPU.
  void note(const Instruction& instruction, const Cost& usual, const DeviceDescription& device);
  // Adds a decision for each kernel that was noted.
  void report(Plan& plan) const;

 private:
  struct Calls {
    int64_t count = 0;
    double us = 0, usual_us = 0;
    bool on_host = false;
  };
  std::map<std::string, Calls> kernels_;  // by op and kernel
};

}  // namespace plimsoll
