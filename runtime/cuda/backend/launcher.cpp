#include "runtime/cuda/backend/launcher.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/Support/ErrorHandling.h"

namespace plimsoll {

const CudaLauncher& launcher_of(const CudaCandidate& candidate) {
  static const llvm::DenseMap<const CudaCandidate*, const CudaLauncher*> by_candidate = [] {
    llvm::StringMap<const CudaLauncher*> by_name;
    for (llvm::ArrayRef<CudaLauncher> family :
         {attention_launchers(), collective_launchers(), conv_launchers(), dense_conv_launchers(),
          elementwise_launchers(), grouped_conv_launchers(), index_launchers(), loss_launchers(), matmul_launchers(),
          move_launchers(), norm_launchers(), plane_taps_launchers(), pool_launchers(), reduce_launchers(),
          resize_launchers(), update_launchers(), volume_conv_launchers()})
      for (const CudaLauncher& launcher : family) by_name[(launcher.op.name + "/" + launcher.name).str()] = &launcher;
    llvm::DenseMap<const CudaCandidate*, const CudaLauncher*> map;
    for (const CudaCandidate* candidate : cuda_candidates()) {
      const std::string name = (candidate->op.name + "/" + candidate->name).str();
      if (!(map[candidate] = by_name.lookup(name))) llvm::report_fatal_error(llvm::Twine("no launcher of ") + name);
    }
    return map;
  }();
  return *by_candidate.find(&candidate)->second;
}

Status launched(const CudaCall& k, cudaError_t error) {
  if (error == cudaSuccess) return Status::success();
  const std::string type = k.results.empty() ? std::string() : " of " + to_string(k.results[0].type);
  return model_error(k.call.op.name + type + ": " + cudaGetErrorString(error));
}

}  // namespace plimsoll
