#pragma once

// What planning asks about kernels: which ones can run a node, what scratch they need, what they
// cost. Answered by the runtime of each backend, readable with no device present.

#include "ir/op_def.h"

namespace plimsoll {

struct KernelCandidate {
  std::string name;             // unique for the op and backend
  int64_t workspace_bytes = 0;  // in the device arena, live during the launch only
  double predicted_us = 0;      // 0: no measurement; the planner's roofline decides
};

class KernelCatalog {
 public:
  virtual ~KernelCatalog() = default;

  // Candidates that accept the call, best first. Never empty: the last one of every op accepts everything.
  virtual std::vector<KernelCandidate> candidates(const OpDef& op, const OpCall& call,
                                                  llvm::ArrayRef<Type> results) const = 0;

  // Are this backend's convolutions of 16-bit floats and TF32 faster on tensors with their channels last?
  virtual bool prefers_channels_last() const { return false; }
  // Matrix products are fastest where the elements of a row are a multiple of this.
  virtual int64_t product_multiple() const { return 1; }
  // Do products take the gradients of what stands before and beside them into their epilogue: gelu's, and the bias's?
  virtual bool has_product_epilogues() const { return false; }
};

}  // namespace plimsoll
