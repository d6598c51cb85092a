#pragma once

// Plans of training steps for a processor or a described GPU, and what they say they decided.

#include "passes/budget/budget_report.h"
#include "passes/compile.h"
#include "runtime/cpu/cpu_catalog.h"
#include "runtime/cuda/cuda_catalog.h"
#include "tests/support/small_training.h"

#include "llvm/ADT/STLExtras.h"

#include <doctest/doctest.h>

namespace plimsoll::testing {

// For the named device of the built-in catalog, or for this processor.
inline Result<Plan> compiled(llvm::StringRef graph, const TrainingRequest& request, const char* device = nullptr) {
  if (!device) return fitting_plan(compile_training(parsed(graph), request, cpu_device(), CpuCatalog()));
  const DeviceDescription described = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find(device));
  return fitting_plan(compile_training(parsed(graph), request, described, CudaCatalog(described)));
}

// A plan for this processor, which there is.
inline Plan compiled_plan(llvm::StringRef graph, const TrainingRequest& request) {
  Result<Plan> plan = compiled(graph, request);
  REQUIRE_MESSAGE(bool(plan), llvm::toString(plan.takeError()));
  return std::move(*plan);
}

inline bool decides(const Plan& plan, llvm::StringRef pass, llvm::StringRef subject, llvm::StringRef choice,
                    llvm::StringRef reason) {
  return llvm::any_of(plan.decisions, [&](const Decision& each) {
    return each.pass == pass && each.subject == subject && each.choice == choice &&
           llvm::StringRef(each.reason).contains(reason);
  });
}

}  // namespace plimsoll::testing
