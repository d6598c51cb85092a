#include "runtime/kernels/cuda_candidate.h"

#include "ir/fused_body.h"

namespace plimsoll {

std::string CudaCandidate::kernel_name(int algorithm) const {
  return algorithm == 0 ? name.str() : name.str() + "_" + std::to_string(algorithm + 1);
}

int64_t moved_bytes(const OpCall& call, llvm::ArrayRef<Type> results) {
  int64_t bytes = -unread_bytes(call);
  for (size_t i = 0; i < call.count(); ++i)
    if (call.has(i)) bytes += call.operand(i).bytes();
  for (const Type& result : results) bytes += result.bytes();
  return bytes;
}

double gathered_us(const OpCall& call, int64_t elements, int64_t bytes, const DeviceDescription& device) {
  constexpr int64_t most_elements = 2 << 20;
  constexpr double calls_of_a_launch = 64;
  const double launch_us = device.launch_us + device.kernel_us;
  return device.roofline_us(0, bytes, std::nullopt) / device.efficiency_of(call.op.name) +
         (elements <= most_elements ? launch_us / calls_of_a_launch : launch_us);
}

llvm::ArrayRef<const CudaCandidate*> cuda_candidates() {
  static const std::vector<const CudaCandidate*> all = [] {
    std::vector<const CudaCandidate*> list;
    for (llvm::ArrayRef<CudaCandidate> family :
         {attention_candidates(),      collective_candidates(), grouped_conv_candidates(), packed_conv_candidates(),
          depthwise_conv_candidates(), dense_conv_candidates(), volume_conv_candidates(),  plane_taps_candidates(),
          pointwise_conv_candidates(), conv_candidates(),       elementwise_candidates(),  index_candidates(),
          loss_candidates(),           matmul_candidates(),     move_candidates(),         norm_candidates(),
          pool_candidates(),           reduce_candidates(),     resize_candidates(),       update_candidates()})
      for (const CudaCandidate& candidate : family) list.push_back(&candidate);
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
