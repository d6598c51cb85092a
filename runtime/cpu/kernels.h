#pragma once

// The table of CPU kernels: for each op the candidates in order of preference. The last candidate of every op
// runs its reference and accepts everything, so whatever has a record has a kernel.

#include "ir/op_def.h"
#include "kernels/cpu/common/library.h"

#include "llvm/ADT/StringMap.h"

#include <memory>

namespace plimsoll {

// What a kernel makes once per instruction when a plan is loaded, and keeps: library primitives and their
// arguments.
class PreparedKernel {
 public:
  virtual ~PreparedKernel() = default;
};

// One launch. Result bytes may overlap operand bytes only as the op's record allows. Workspace is aligned
// to 64 bytes and as long as the kernel asked for.
struct KernelCall {
  const OpDef& op;
  const OpCall& call;
  llvm::ArrayRef<TensorView> operands;  // an absent one has no data
  llvm::ArrayRef<TensorView> results;
  void* workspace = nullptr;
  PreparedKernel* prepared = nullptr;  // what the kernel's prepare returned, if it has one

  bool has(size_t i) const { return call.has(i); }
  // Operand i, or null when absent; result i.
  template <typename T>
  const T* in(size_t i) const {
    return has(i) ? operands[i].as<T>() : nullptr;
  }
  template <typename T>
  T* out(size_t i) const {
    return results[i].as<T>();
  }
};

struct CpuKernel {
  using AcceptsFn = bool (*)(const OpCall& call, llvm::ArrayRef<Type> results);
  using WorkspaceFn = int64_t (*)(const OpCall& call, llvm::ArrayRef<Type> results);
  using PrepareFn = Result<std::unique_ptr<PreparedKernel>> (*)(cpu::Library& library, const OpCall& call,
                                                                llvm::ArrayRef<Type> results);
  using LaunchFn = Status (*)(const KernelCall& call);

  llvm::StringLiteral op;
  llvm::StringLiteral name;
  AcceptsFn accepts;
  LaunchFn launch;
  WorkspaceFn workspace_bytes =
      nullptr;                  // none: 0. A formula of shapes alone, so that plans do not depend on the machine
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
  Status launch(const KernelCall& call) const;

 private:
  const CpuKernel* kernel_;
  Storage storage_;
};

class CpuKernelTable {
 public:
  CpuKernelTable();

  // Those that accept the call, best first, the reference last.
  llvm::SmallVector<CpuCandidate, 2> candidates(const OpDef& op, const OpCall& call,
                                                llvm::ArrayRef<Type> results) const;
  // None when the op has no kernel of that name.
  std::optional<CpuCandidate> find(llvm::StringRef op, llvm::StringRef name) const;

 private:
  llvm::StringMap<llvm::SmallVector<const CpuKernel*, 2>> by_op_;
};

}  // namespace plimsoll
