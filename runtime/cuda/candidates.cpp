#include "runtime/cuda/candidates.h"

namespace plimsoll {
namespace {

bool accepts_everything(const OpCall&, llvm::ArrayRef<Type>) { return true; }

constexpr CudaCandidate reference_candidate{"", "reference", accepts_everything};

}  // namespace

std::vector<const CudaCandidate*> all_cuda_candidates() {
  std::vector<const CudaCandidate*> all;
  // Libraries first: where they accept a call they are the fastest.
  for (llvm::ArrayRef<CudaCandidate> family :
       {cuda_convolution_candidates(), cuda_library_candidates(), cuda_product_candidates(),
        cuda_elementwise_candidates(), cuda_move_candidates(), cuda_index_candidates(), cuda_reduce_candidates(),
        cuda_norm_candidates(), cuda_loss_candidates(), cuda_attention_candidates(), cuda_update_candidates(),
        cuda_pool_candidates(), cuda_resize_candidates()})
    for (const CudaCandidate& candidate : family) all.push_back(&candidate);
  all.push_back(&reference_candidate);
  return all;
}

CudaCatalog::CudaCatalog(const DeviceDescription& device, bool any_order) : device_(device) {
  for (const CudaCandidate* candidate : all_cuda_candidates())
    if (any_order || !candidate->any_order) by_op_[candidate->op].push_back(candidate);
}

std::vector<KernelCandidate> CudaCatalog::candidates(const OpDef& op, const OpCall& call,
                                                     llvm::ArrayRef<Type> results) const {
  std::vector<KernelCandidate> accepted;
  auto entry = by_op_.find(op.name);
  if (entry != by_op_.end())
    for (const CudaCandidate* candidate : entry->second)
      if (candidate->accepts(call, results))
        accepted.push_back({candidate->name.str(),
                            candidate->workspace_bytes ? candidate->workspace_bytes(call, results, device_) : 0});
  accepted.push_back({reference_candidate.name.str()});
  return accepted;
}

}  // namespace plimsoll
