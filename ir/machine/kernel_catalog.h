#pragma once

// Tells planning which kernels can run a node, what workspace they need and what they cost. The runtime of each backend
// implements it, and it needs no device.

#include "ir/op_def.h"

#include <algorithm>

namespace plimsoll {

struct KernelCandidate {
  std::string name;              // unique for the op and backend
  int64_t workspace_bytes = 0;   // in the device arena, live during the launch only
  double predicted_us = 0;       // by measurements; 0: the planner's roofline decides
  bool shares_launches = false;  // with calls of the same types right behind it, which do not depend on each other
};

// Forms of programs for which a backend's kernels are faster.
struct KernelPreferences {
  bool channels_last = false;    // images, of 16-bit floats or TF32, in convolutions
  int64_t product_multiple = 1;  // matmuls are fastest where the elements of a row are a multiple of this
  // A matmul's epilogue can compute the gradients of a gelu before it, in the tanh form, and of its bias; and of a gelu
  // in the exact form.
  bool product_epilogues = false, exact_gelu_epilogues = false;
  bool apart_biases = false;     // convolutions add a bias in a launch of its own
  bool norms_in_bodies = false;  // a fused op that has a norm and what makes its rows is faster than both
  // Kernels multiply each of many 16-bit matrices by one matrix at its left, and sum such products over the batch, of
  // up to so many rows and columns of the one matrix; 0: there are none.
  int64_t left_product_size = 0;

  // The forms that are faster on this device and on another.
  KernelPreferences with(const KernelPreferences& other) const {
    return {channels_last && other.channels_last,
            std::max(product_multiple, other.product_multiple),
            product_epilogues && other.product_epilogues,
            exact_gelu_epilogues && other.exact_gelu_epilogues,
            apart_biases && other.apart_biases,
            norms_in_bodies && other.norms_in_bodies,
            std::min(left_product_size, other.left_product_size)};
  }
};

class KernelCatalog {
 public:
  virtual ~KernelCatalog() = default;

  // Returns the candidates that accept the call, best first. There is at least one: the last one of every op accepts
  // every call.
  virtual std::vector<KernelCandidate> candidates(const OpDef& op, const OpCall& call,
                                                  llvm::ArrayRef<Type> results) const = 0;

  virtual KernelPreferences preferences() const { return {}; }
};

}  // namespace plimsoll
