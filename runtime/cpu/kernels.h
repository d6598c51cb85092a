#pragma once

// The table of CPU kernels: for each op the candidates in order of preference. The last candidate of every op
// runs its reference and accepts everything, so whatever has a record has a kernel.

#include "ir/ops/records.h"
#include "kernels/cpu/common/library.h"
#include "runtime/comm/host_collectives.h"
#include "runtime/kernels/accepts.h"
#include "runtime/kernels/kernel_call.h"

#include "llvm/ADT/DenseMap.h"

#include <memory>

namespace plimsoll {

// A kernel prepares this once per instruction when a plan is loaded: library primitives and their arguments.
class PreparedKernel {
 public:
  virtual ~PreparedKernel() = default;
};

// Workspace is aligned to 64 bytes and as long as the kernel asked for.
struct CpuCall : KernelCall {
  PreparedKernel* prepared = nullptr;  // what the kernel's prepare returned, if it has one
  HostCollectives* ranks = nullptr;    // null: one rank
};

// Planning chooses a kernel by this row and the executor launches it.
struct CpuKernel {
  using AcceptsFn = bool (*)(const OpCall& call, llvm::ArrayRef<Type> results);
  using WorkspaceFn = int64_t (*)(const OpCall& call, llvm::ArrayRef<Type> results);
  using PrepareFn = Result<std::unique_ptr<PreparedKernel>> (*)(cpu::Library& library, const OpCall& call,
                                                                llvm::ArrayRef<Type> results);
  using LaunchFn = Status (*)(const CpuCall& call);

  const OpDef& op;
  llvm::StringLiteral name;
  AcceptsFn accepts;
  LaunchFn launch;
  // None: 0. A formula of shapes alone, so that plans do not depend on the machine.
  WorkspaceFn workspace_bytes = nullptr;
  PrepareFn prepare = nullptr;  // none: nothing to prepare
};

// A kernel as one call uses it: on its operands as they are, or on f32 copies of 16-bit ones (widened.h).
class CpuCandidate {
 public:
  enum class Storage : uint8_t { AsIs, Widened };

  explicit CpuCandidate(const CpuKernel& kernel, Storage storage = Storage::AsIs)
      : kernel_(&kernel), storage_(storage) {}

  std::string name() const;  // "onednn", "onednn.widened"
  int64_t workspace_bytes(const OpCall& call, llvm::ArrayRef<Type> results) const;
  // Null when there is nothing to prepare.
  Result<std::unique_ptr<PreparedKernel>> prepare(cpu::Library& library, const OpCall& call,
                                                  llvm::ArrayRef<Type> results) const;
  Status launch(const CpuCall& call) const;

 private:
  const CpuKernel* kernel_;
  Storage storage_;
};

// The families the table is made of, one file each.
llvm::ArrayRef<CpuKernel> attention_kernels();
llvm::ArrayRef<CpuKernel> collective_kernels();
llvm::ArrayRef<CpuKernel> conv_kernels();
llvm::ArrayRef<CpuKernel> elementwise_kernels();
llvm::ArrayRef<CpuKernel> index_kernels();
llvm::ArrayRef<CpuKernel> loss_kernels();
llvm::ArrayRef<CpuKernel> matmul_kernels();
llvm::ArrayRef<CpuKernel> move_kernels();
llvm::ArrayRef<CpuKernel> norm_kernels();
llvm::ArrayRef<CpuKernel> pool_kernels();
llvm::ArrayRef<CpuKernel> reduce_kernels();
llvm::ArrayRef<CpuKernel> resize_kernels();
llvm::ArrayRef<CpuKernel> update_kernels();

class CpuKernelTable {
 public:
  CpuKernelTable();

  // Those that accept the call, best first, the reference last.
  llvm::SmallVector<CpuCandidate, 2> candidates(const OpDef& op, const OpCall& call,
                                                llvm::ArrayRef<Type> results) const;
  // None when the op has no kernel of that name.
  std::optional<CpuCandidate> find(const OpDef& op, llvm::StringRef name) const;

 private:
  llvm::DenseMap<const OpDef*, llvm::SmallVector<const CpuKernel*, 2>> by_op_;
};

}  // namespace plimsoll
