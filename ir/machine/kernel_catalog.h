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

// What a backend's kernels like programs to look like.
struct KernelPreferences {
  bool channels_last = false;      // images, of 16-bit floats or TF32, in convolutions
  int64_t product_multiple = 1;    // matrix products are fastest where the elements of a row are a multiple of this
  bool product_epilogues = false;  // products take the gradients of what stands before and beside them into their
                                   // epilogue: gelu's, and the bias's
};

class KernelCatalog {
 public:
  virtual ~KernelCatalog() = default;

  // Candidates that accept the call, best first. Never empty: the last one of every op accepts everything.
  virtual std::vector<KernelCandidate> candidates(const OpDef& op, const OpCall& call,
                                                  llvm::ArrayRef<Type> results) const = 0;

  virtual KernelPreferences preferences() const { return {}; }
};

}  // namespace plimsoll
