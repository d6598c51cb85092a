#pragma once

// The last candidate of every op: operands are copied to pinned memory, the op's reference runs on the host in
// stream order, results are copied back. Slow, accepts everything, and may be captured in a graph.

#include "runtime/cuda/backend/launcher.h"

#include <atomic>
#include <mutex>

namespace plimsoll {

// Shared by all such steps of a plan, which run one after the other.
struct HostReferenceState {
  std::byte* staging = nullptr;   // pinned, as long as the longest step asks for
  std::atomic<bool> idle{false};  // set while kernels are only warmed up: the data means nothing
  std::mutex mutex;
  std::string failure;  // of the first reference that failed since it was last looked at
};

class HostReference : public CudaPrepared {
 public:
  HostReference(const CudaCall& call, llvm::StringRef name, HostReferenceState& state);

  static int64_t staging_bytes(const CudaCall& call);
  Status launch(const CudaCall& call);

 private:
  static void CUDART_CB compute(void* self);

  const OpDef& op_;
  const Attrs& attrs_;
  std::string name_;
  llvm::SmallVector<Type, 4> operand_types_;
  llvm::SmallVector<const Type*, 4> operand_pointers_;  // null where absent
  llvm::SmallVector<Type, 2> result_types_;
  HostReferenceState& state_;
};

}  // namespace plimsoll
