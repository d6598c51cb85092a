#pragma once

#include "passes/budget/budget_report.h"
#include "passes/compile.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/small_training.h"

#include <doctest/doctest.h>

namespace plimsoll::testing {

// The gradients of a step of the graph, whose inputs and states have the names and random values of `model`.
inline std::map<std::string, Tensor> gradients_of_step(const Graph& graph, llvm::StringRef model,
                                                       const TrainingRequest& request) {
  RandomValues values;
  values.add_for(parsed(model));
  const CpuCatalog catalog;
  Result<Plan> plan = fitting_plan(compile_training(graph, request, cpu_device(), catalog));
  REQUIRE_MESSAGE(bool(plan), llvm::toString(plan.takeError()));
  const std::unique_ptr<Session> session = started(std::move(*plan), values);
  OneBatch data(values, session->inputs());
  std::map<std::string, Tensor> found;
  GradientSink sink = [&](llvm::StringRef name, const Tensor& gradient) {
    found.emplace(name.str(), gradient);
    return Status::success();
  };
  llvm::cantFail(session->step(data, &sink));
  return found;
}

}  // namespace plimsoll::testing
