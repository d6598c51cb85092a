#pragma once

// What a catalog of CUDA kernels offers for samples and calls, with no device present.

#include "runtime/cuda/cuda_catalog.h"

#include <doctest/doctest.h>

namespace plimsoll::testing {

inline DeviceDescription any_device() {
  DeviceDescription device;
  device.backend = "cuda";
  return device;
}

// The best candidate of an op for one of its samples.
inline KernelCandidate best_candidate(const CudaCatalog& catalog, const OpDef& op, const Sample& sample) {
  llvm::SmallVector<const Type*, 4> types;
  for (const SampleOperand& operand : sample.operands)
    types.push_back(operand.fill == SampleOperand::Fill::Absent ? nullptr : &operand.type);
  const OpCall call(op, sample.attrs, types);
  Result<Types> results = infer(call);
  REQUIRE(results);
  return catalog.candidates(op, call, *results).front();
}

// All candidates of a call in their order, a space behind each.
inline std::string names_of(const CudaCatalog& catalog, llvm::StringRef op, const Attrs& attrs,
                            llvm::ArrayRef<Type> operands) {
  llvm::SmallVector<const Type*, 4> types;
  for (const Type& type : operands) types.push_back(&type);
  const OpCall call(get_op(op), attrs, types);
  Result<Types> results = infer(call);
  REQUIRE(results);
  std::string names;
  for (const KernelCandidate& candidate : catalog.candidates(get_op(op), call, *results)) names += candidate.name + " ";
  return names;
}

// All candidates of a call for an H200, best first, and what one of them takes; 0 where it is none of them.
inline std::vector<KernelCandidate> candidates_on_h200(llvm::StringRef op, const Attrs& attrs,
                                                       llvm::ArrayRef<Type> operands) {
  const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
  llvm::SmallVector<const Type*, 8> types;
  for (const Type& type : operands) types.push_back(&type);
  const OpCall call(get_op(op), attrs, types);
  const auto all = CudaCatalog(h200).candidates(call.op, call, llvm::cantFail(infer(call)));
  return {all.begin(), all.end()};
}

inline double predicted_us(llvm::ArrayRef<KernelCandidate> candidates, llvm::StringRef name) {
  for (const KernelCandidate& each : candidates)
    if (each.name == name) return each.predicted_us;
  return 0;
}

}  // namespace plimsoll::testing
