#pragma once

#include "ir/op_def.h"

#include <optional>
#include <vector>

namespace plimsoll {

// A convolution over volumes as one over images, which has more kernels and quicker ones. Planning asks kernels about
// the folded call, and executors hand it to them; plans keep the call as it was written.
//
// Where the kernel has one tap in depth, every plane is an image of its own: [batch * depth, down, across, channels].
// Where it has several in depth alone, a plane is one long line: [batch, depth, down * across, channels]. Nothing
// moves, since channels are last.
class FoldedConvolution {
 public:
  // None for other calls.
  static std::optional<FoldedConvolution> of(const OpCall& call, llvm::ArrayRef<Type> results);

  OpCall call() const { return {*op_, attrs_, pointers_}; }  // lives as long as this
  const Attrs& attrs() const { return attrs_; }
  llvm::ArrayRef<const Type*> operands() const { return pointers_; }
  llvm::ArrayRef<Type> results() const { return results_; }

  FoldedConvolution(FoldedConvolution&&) = default;
  FoldedConvolution& operator=(FoldedConvolution&&) = default;

 private:
  FoldedConvolution() = default;

  const OpDef* op_ = nullptr;
  Attrs attrs_;
  std::vector<Type> types_, results_;
  std::vector<const Type*> pointers_;  // into types_; null for absent operands
};

}  // namespace plimsoll
