#include "passes/slow_kernels.h"

#include "ir/support/units.h"

namespace plimsoll {

void SlowKernels::note(const Instruction& instruction, const Cost& usual, const DeviceDescription& device) {
  constexpr double max_times_usual = 10;
  const bool on_host = instruction.kernel == "reference" && device.backend != "cpu";
  if (!on_host && instruction.predicted_us < max_times_usual * usual.predicted_us) return;
  Calls& calls = kernels_[instruction.op + "/" + instruction.kernel];
  calls.on_host = on_host;
  ++calls.count;
  calls.us += instruction.predicted_us;
  calls.usual_us += usual.predicted_us;
}

void SlowKernels::report(Plan& plan) const {
  for (const auto& [name, calls] : kernels_)
    plan.decisions.push_back({"kernels", name, std::to_string(calls.count) + (calls.count == 1 ? " call" : " calls"),
                              calls.on_host ? "no kernel of the device takes them: they run on the host"
                                            : format_us(calls.us) + ", where kernels of the op usually take " +
                                                  format_us(calls.usual_us) + "; no faster one takes these calls"});
}

}  // namespace plimsoll
