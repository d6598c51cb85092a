#pragma once

// Runs CPU kernels on given operands and compares them with the op's reference.

#include "runtime/host/kernels.h"
#include "tests/sample_tensors.h"

#include "doctest/doctest.h"

#include <vector>

namespace plimsoll::testing {

// One node with its operands; null where an operand is absent.
struct KernelCase {
  const OpDef& op;
  Attrs attrs;
  std::vector<Tensor> tensors;
  std::vector<bool> present;

  KernelCase(llvm::StringRef op, Attrs attrs, llvm::ArrayRef<SampleOperand> operands, uint32_t seed);

  llvm::SmallVector<const Type*, 4> types() const;
};

// Every kernel that accepts the case, apart and with every overlap the record lists, must agree with the
// reference.
void check_against_reference(const CpuKernelTable& table, const KernelCase& c);

// Results of one kernel; `overlaps` are the pairs to alias.
std::vector<Tensor> run_kernel(const CpuCandidate& kernel, const KernelCase& c,
                               llvm::ArrayRef<InPlace> overlaps);

}  // namespace plimsoll::testing
