#include "runtime/cpu/kernels.h"

#include "runtime/cpu/widened.h"

namespace plimsoll {
namespace {

// Stands behind the kernels of every op.
Status launch_reference(const CpuCall& k) { return k.call.op.reference(ReferenceCall(k.call, k.operands, k.results)); }

constexpr CpuKernel reference_kernel{op_identity, "reference", accepts_everything, launch_reference};

constexpr llvm::StringLiteral widened_suffix = ".widened";

}  // namespace

std::string CpuCandidate::name() const {
  return kernel_->name.str() + (storage_ == Storage::Widened ? widened_suffix.str() : "");
}

int64_t CpuCandidate::workspace_bytes(const OpCall& call, llvm::ArrayRef<Type> results) const {
  auto own = [&](const OpCall& seen, llvm::ArrayRef<Type> seen_results) {
    return kernel_->workspace_bytes ? kernel_->workspace_bytes(seen, seen_results) : 0;
  };
  if (storage_ == Storage::AsIs) return own(call, results);
  const WidenedCall wide(call, results);
  return wide.copies_bytes() + own(wide.call(), wide.results());
}

Result<std::unique_ptr<PreparedKernel>> CpuCandidate::prepare(cpu::Library& library, const OpCall& call,
                                                              llvm::ArrayRef<Type> results) const {
  if (!kernel_->prepare) return nullptr;
  if (storage_ == Storage::AsIs) return kernel_->prepare(library, call, results);
  const WidenedCall wide(call, results);
  return kernel_->prepare(library, wide.call(), wide.results());
}

Status CpuCandidate::launch(const CpuCall& call) const {
  return storage_ == Storage::AsIs ? kernel_->launch(call) : launch_widened(*kernel_, call);
}

CpuKernelTable::CpuKernelTable() {
  const llvm::ArrayRef<CpuKernel> families[] = {
      attention_kernels(), collective_kernels(), conv_kernels(),  elementwise_kernels(), index_kernels(),
      loss_kernels(),      matmul_kernels(),     move_kernels(),  norm_kernels(),        pool_kernels(),
      reduce_kernels(),    resize_kernels(),     update_kernels()};
  for (llvm::ArrayRef<CpuKernel> family : families)
    for (const CpuKernel& kernel : family) by_op_[&kernel.op].push_back(&kernel);
}

llvm::SmallVector<CpuCandidate, 2> CpuKernelTable::candidates(const OpDef& op, const OpCall& call,
                                                              llvm::ArrayRef<Type> results) const {
  llvm::SmallVector<CpuCandidate, 2> accepted;
  auto entry = by_op_.find(&op);
  if (entry != by_op_.end()) {
    const WidenedCall wide(call, results);
    for (const CpuKernel* kernel : entry->second)
      if (kernel->accepts(call, results))
        accepted.emplace_back(*kernel);
      else if (wide.changes_anything() && kernel->accepts(wide.call(), wide.results()))
        accepted.emplace_back(*kernel, CpuCandidate::Storage::Widened);
  }
  accepted.emplace_back(reference_kernel);
  return accepted;
}

std::optional<CpuCandidate> CpuKernelTable::find(const OpDef& op, llvm::StringRef name) const {
  if (name == reference_kernel.name) return CpuCandidate(reference_kernel);
  const bool widened = name.consume_back(widened_suffix);
  auto entry = by_op_.find(&op);
  if (entry == by_op_.end()) return std::nullopt;
  for (const CpuKernel* kernel : entry->second)
    if (kernel->name == name)
      return CpuCandidate(*kernel, widened ? CpuCandidate::Storage::Widened : CpuCandidate::Storage::AsIs);
  return std::nullopt;
}

}  // namespace plimsoll
