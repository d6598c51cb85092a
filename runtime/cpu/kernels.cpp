#include "runtime/cpu/kernels.h"

#include "runtime/cpu/kernels_families.h"
#include "runtime/cpu/widened.h"

namespace plimsoll {
namespace {

bool accepts_everything(const OpCall&, llvm::ArrayRef<Type>) { return true; }

Status launch_reference(const KernelCall& k) { return k.op.reference(k.call, k.operands, k.results); }

constexpr CpuKernel reference_kernel{"", "reference", accepts_everything, launch_reference};

bool ranks_at_most(const OpCall& call, llvm::ArrayRef<Type> results, int64_t limit) {
  for (size_t i = 0; i < call.count(); ++i)
    if (call.has(i) && call.operand(i).rank() > limit) return false;
  return llvm::all_of(results, [&](const Type& type) { return type.rank() <= limit; });
}

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

Status CpuCandidate::launch(const KernelCall& call) const {
  return storage_ == Storage::AsIs ? kernel_->launch(call) : launch_widened(*kernel_, call);
}

CpuKernelTable::CpuKernelTable() {
  const llvm::ArrayRef<CpuKernel> families[] = {unary_kernels(),     binary_kernels(), move_kernels(), index_kernels(),
                                                product_kernels(),   reduce_kernels(), norm_kernels(), loss_kernels(),
                                                attention_kernels(), update_kernels(), conv_kernels(), pool_kernels(),
                                                resize_kernels()};
  for (llvm::ArrayRef<CpuKernel> family : families)
    for (const CpuKernel& kernel : family) by_op_[kernel.op].push_back(&kernel);
}

llvm::SmallVector<CpuCandidate, 2> CpuKernelTable::candidates(const OpDef& op, const OpCall& call,
                                                              llvm::ArrayRef<Type> results) const {
  llvm::SmallVector<CpuCandidate, 2> accepted;
  auto entry = by_op_.find(op.name);
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

std::optional<CpuCandidate> CpuKernelTable::find(llvm::StringRef op, llvm::StringRef name) const {
  if (name == reference_kernel.name) return CpuCandidate(reference_kernel);
  const bool widened = name.consume_back(widened_suffix);
  auto entry = by_op_.find(op);
  if (entry == by_op_.end()) return std::nullopt;
  for (const CpuKernel* kernel : entry->second)
    if (kernel->name == name)
      return CpuCandidate(*kernel, widened ? CpuCandidate::Storage::Widened : CpuCandidate::Storage::AsIs);
  return std::nullopt;
}

bool ranks_fit(const OpCall& call, llvm::ArrayRef<Type> results) { return ranks_at_most(call, results, max_rank); }

bool floats_are_f32(const OpCall& call, llvm::ArrayRef<Type> results) {
  auto fits = [](const Type& type) { return !is_float(type.dtype) || type.dtype == DType::F32; };
  for (size_t i = 0; i < call.count(); ++i)
    if (call.has(i) && !fits(call.operand(i))) return false;
  return llvm::all_of(results, fits) && ranks_fit(call, results);
}

bool all_f32(const OpCall& call, llvm::ArrayRef<Type> results) {
  auto fits = [](const Type& type) { return type.dtype == DType::F32; };
  for (size_t i = 0; i < call.count(); ++i)
    if (call.has(i) && !fits(call.operand(i))) return false;
  return llvm::all_of(results, fits) && ranks_fit(call, results);
}

}  // namespace plimsoll
