#pragma once

// A CUDA kernel as planning sees it. The rows stand in the families beside this file and need no CUDA;
// runtime/cuda/backend/<family>.cpp says how each is launched, in a row of the same op and name.

#include "ir/machine/device.h"
#include "ir/ops/records.h"
#include "runtime/kernels/accepts.h"

#include <optional>
#include <string>

namespace plimsoll {

struct CudaCandidate {
  using AcceptsFn = bool (*)(const OpCall& call, llvm::ArrayRef<Type> results);
  // A formula of shapes and of the device's description: plans do not depend on the machine that makes them.
  using WorkspaceFn = int64_t (*)(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription& device);

  // Microseconds of a call, launches and all, as measured on one card and scaled to another.
  using TimeFn = double (*)(const OpCall& call, const DeviceDescription& device);

  const OpDef& op;
  llvm::StringLiteral name;
  AcceptsFn accepts;
  WorkspaceFn workspace_bytes = nullptr;  // none: 0
  bool any_order = false;                 // its sums run in another order every time, and give other bits
  int algorithms = 1;                     // a library's own choices for a call, the one it prefers first
  AcceptsFn accepts_others = nullptr;     // narrows what the algorithms after the first accept
  TimeFn predicted_us = nullptr;          // none: the planner's roofline
  int capability = 0;                     // runs on cards of this compute capability alone; 0: on any
  AcceptsFn shares_launches = nullptr;    // calls that one launch does together with others of the same types

  // The name of an algorithm in plans: "cudnn", "cudnn_2" and so on.
  std::string kernel_name(int algorithm) const;
};

// One algorithm of a candidate, counted from 0.
struct CudaKernel {
  const CudaCandidate* candidate;
  int algorithm = 0;
};

// Bytes of all operands and results.
int64_t moved_bytes(const OpCall& call, llvm::ArrayRef<Type> results);

// Microseconds of a call that moves so many bytes and is one of many, of tensors of so many elements. Plans that keep
// everything gather them, so that dozens share a launch: AdamW of HRNet's 981 tensors has 4 launches, of RegNet's 290
// 3, of EfficientNet's 213 2. In others fewer do, and take up to 3.5 us a call longer than this: a price does not
// depend on the order, so that plans of one job can be compared.
double gathered_us(const OpCall& call, int64_t elements, int64_t bytes, const DeviceDescription& device);

// The families, one file each.
llvm::ArrayRef<CudaCandidate> attention_candidates();
llvm::ArrayRef<CudaCandidate> collective_candidates();
llvm::ArrayRef<CudaCandidate> conv_candidates();
llvm::ArrayRef<CudaCandidate> dense_conv_candidates();
llvm::ArrayRef<CudaCandidate> depthwise_conv_candidates();
llvm::ArrayRef<CudaCandidate> elementwise_candidates();
llvm::ArrayRef<CudaCandidate> grouped_conv_candidates();
llvm::ArrayRef<CudaCandidate> index_candidates();
llvm::ArrayRef<CudaCandidate> loss_candidates();
llvm::ArrayRef<CudaCandidate> matmul_candidates();
llvm::ArrayRef<CudaCandidate> move_candidates();
llvm::ArrayRef<CudaCandidate> norm_candidates();
llvm::ArrayRef<CudaCandidate> packed_conv_candidates();
llvm::ArrayRef<CudaCandidate> plane_taps_candidates();
llvm::ArrayRef<CudaCandidate> pointwise_conv_candidates();
llvm::ArrayRef<CudaCandidate> pool_candidates();
llvm::ArrayRef<CudaCandidate> reduce_candidates();
llvm::ArrayRef<CudaCandidate> resize_candidates();
llvm::ArrayRef<CudaCandidate> update_candidates();
llvm::ArrayRef<CudaCandidate> volume_conv_candidates();

// Every candidate of every family. Of those that accept a call the one that is predicted to be the fastest is
// preferred, and the first where one of them has no prediction; measured times go before either.
llvm::ArrayRef<const CudaCandidate*> cuda_candidates();

// The kernel that a plan calls by this name; none where it is unknown.
std::optional<CudaKernel> find_cuda_kernel(const OpDef& op, llvm::StringRef kernel_name);

}  // namespace plimsoll
