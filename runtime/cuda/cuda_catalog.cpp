#include "runtime/cuda/cuda_catalog.h"

#include <algorithm>

namespace plimsoll {

CudaCatalog::CudaCatalog(const DeviceDescription& device, bool any_order) : device_(device) {
  for (const CudaCandidate* candidate : cuda_candidates())
    if ((any_order || !candidate->any_order) &&
        (candidate->capability == 0 || candidate->capability == device.compute_capability))
      by_op_[&candidate->op].push_back(candidate);
}

std::vector<KernelCandidate> CudaCatalog::candidates(const OpDef& op, const OpCall& call,
                                                     llvm::ArrayRef<Type> results) const {
  std::vector<KernelCandidate> accepted;
  const auto entry = by_op_.find(&op);
  for (const CudaCandidate* candidate :
       entry == by_op_.end() ? llvm::ArrayRef<const CudaCandidate*>() : llvm::makeArrayRef(entry->second)) {
    if (!candidate->accepts(call, results)) continue;
    const bool others = !candidate->accepts_others || candidate->accepts_others(call, results);
    const int64_t bytes = candidate->workspace_bytes ? candidate->workspace_bytes(call, results, device_) : 0;
    for (int algorithm = 0; algorithm < (others ? candidate->algorithms : 1); ++algorithm)
      accepted.push_back({candidate->kernel_name(algorithm), bytes,
                          candidate->predicted_us ? candidate->predicted_us(call, device_) : 0,
                          candidate->shares_launches && candidate->shares_launches(call, results)});
  }
  // Where all have predictions, these decide; kernels with less workspace stay behind.
  const auto end = std::find_if(accepted.begin(), accepted.end(), [](const KernelCandidate& candidate) {
    return llvm::StringRef(candidate.name).endswith("_lean");
  });
  if (std::all_of(accepted.begin(), end, [](const KernelCandidate& c) { return c.predicted_us > 0; }))
    std::stable_sort(accepted.begin(), end, [](const KernelCandidate& a, const KernelCandidate& b) {
      return a.predicted_us < b.predicted_us;
    });
  accepted.push_back({"reference"});  // on the host; accepts everything
  return accepted;
}

}  // namespace plimsoll
