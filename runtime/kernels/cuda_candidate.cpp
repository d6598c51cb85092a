#include "runtime/kernels/cuda_candidate.h"

#include "runtime/kernels/attention.h"
#include "runtime/kernels/conv.h"
#include "runtime/kernels/elementwise.h"
#include "runtime/kernels/index.h"
#include "runtime/kernels/loss.h"
#include "runtime/kernels/matmul.h"
#include "runtime/kernels/move.h"
#include "runtime/kernels/norm.h"
#include "runtime/kernels/pool.h"
#include "runtime/kernels/reduce.h"
#include "runtime/kernels/resize.h"
#include "runtime/kernels/update.h"

namespace plimsoll {

std::string CudaCandidate::kernel_name(int algorithm) const {
  return algorithm == 0 ? name.str() : name.str() + "_" + std::to_string(algorithm + 1);
}

llvm::ArrayRef<const CudaCandidate*> cuda_candidates() {
  static const std::vector<const CudaCandidate*> all = [] {
    std::vector<const CudaCandidate*> list;
    for (llvm::ArrayRef<const CudaCandidate*> family :
         {llvm::makeArrayRef(attention_candidates), llvm::makeArrayRef(conv_candidates),
          llvm::makeArrayRef(elementwise_candidates), llvm::makeArrayRef(index_candidates),
          llvm::makeArrayRef(loss_candidates), llvm::makeArrayRef(matmul_candidates),
          llvm::makeArrayRef(move_candidates), llvm::makeArrayRef(norm_candidates), llvm::makeArrayRef(pool_candidates),
          llvm::makeArrayRef(reduce_candidates), llvm::makeArrayRef(resize_candidates),
          llvm::makeArrayRef(update_candidates)})
      list.insert(list.end(), family.begin(), family.end());
    return list;
  }();
  return all;
}

std::optional<CudaKernel> find_cuda_kernel(const OpDef& op, llvm::StringRef kernel_name) {
  for (const CudaCandidate* candidate : cuda_candidates())
    for (int algorithm = 0; &candidate->op == &op && algorithm < candidate->algorithms; ++algorithm)
      if (candidate->kernel_name(algorithm) == kernel_name) return CudaKernel{candidate, algorithm};
  return std::nullopt;
}

}  // namespace plimsoll
