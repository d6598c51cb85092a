#include "runtime/cpu/cpu_catalog.h"

namespace plimsoll {

// Microseconds per operation of a reference, roughly and not measured: every element goes through a switch
// on its dtype.
static constexpr double reference_us_per_flop = 0.01;

std::vector<KernelCandidate> CpuCatalog::candidates(const OpDef& op, const OpCall& call,
                                                    llvm::ArrayRef<Type> results) const {
  std::vector<KernelCandidate> list;
  for (const CpuCandidate& kernel : table_.candidates(op, call, results))
    list.push_back({.name = kernel.name(), .workspace_bytes = kernel.workspace_bytes(call, results)});
  const double flops = op.flops ? op.flops(call, results) : static_cast<double>(results[0].elements());
  list.back().predicted_us = reference_us_per_flop * flops;
  return list;
}

}  // namespace plimsoll
