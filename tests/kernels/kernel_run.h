#pragma once

// Runs CPU kernels on given operands and compares them with the op's reference.

#include "runtime/cpu/kernels.h"
#include "tests/support/sample_tensors.h"

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

// What the op's record infers for the case; fails the test when it refuses.
Types result_types_of(const KernelCase& c);

// What the op's reference gives.
std::vector<Tensor> run_reference(const KernelCase& c);

// Sets of results and operands whose bytes the record allows to be the same; the empty set first.
std::vector<std::vector<InPlace>> overlaps_of(const KernelCase& c);

// Fails the test where a result is further from the reference's than rounding explains.
void check_results(const KernelCase& c, llvm::ArrayRef<Tensor> got, llvm::ArrayRef<Tensor> wanted);

// Every kernel that accepts the case, apart and with every overlap the record lists, must agree with the
// reference.
void check_against_reference(const CpuKernelTable& table, const KernelCase& c);

// Results of one kernel; `overlaps` are the pairs to alias.
std::vector<Tensor> run_kernel(const CpuCandidate& kernel, const KernelCase& c, llvm::ArrayRef<InPlace> overlaps);

}  // namespace plimsoll::testing
