#pragma once

// Plans of small pipelines on the host.

#include "ir/machine/common_device.h"
#include "passes/budget/budget_report.h"
#include "passes/compile.h"
#include "passes/derive_stages.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/small_training.h"

#include <doctest/doctest.h>

namespace plimsoll::testing {

inline Result<CompileResult> compiled(const Graph& forward, TrainingRequest request) {
  const CpuCatalog catalog;
  request.clip_grad_norm = 0.5;
  request.optimizer.eps = 1e-3;
  return compile_training(forward, request, cpu_device(), catalog);
}

inline Result<CompileResult> compiled_on(llvm::ArrayRef<DeviceDescription> stages, const Graph& forward,
                                         const TrainingRequest& request) {
  std::vector<CpuCatalog> catalogs(stages.size());
  std::vector<StageDevice> by_stage;
  for (size_t i = 0; i < stages.size(); ++i) by_stage.push_back({stages[i], &catalogs[i]});
  Result<CleanModel> model = clean_model(forward, request.loss);
  if (!model) return model.takeError();
  return compile_training(std::move(*model), request, StageDevices(std::move(by_stage)));
}

// The processor with a part of its speed.
inline DeviceDescription slower(double times) {
  DeviceDescription device = cpu_device();
  device.name = "slow";
  device.title = "a slow processor";
  for (auto& [dtype, tflops] : device.matmul_tflops) tflops /= times;
  device.vector_tflops /= times, device.memory_gb_per_s /= times, device.launch_us *= times;
  return device;
}

inline Plan plan_for(const Graph& forward, const TrainingRequest& request) {
  Result<CompileResult> result = compiled(forward, request);
  REQUIRE_MESSAGE(bool(result), llvm::toString(result.takeError()));
  return std::move(result->plan);
}

inline TrainingRequest on_mesh(llvm::StringRef mesh, int64_t micro_batches,
                               PipelineSchedule schedule = PipelineSchedule::OneForwardOneBackward) {
  TrainingRequest request;
  request.schedule = schedule;
  request.mesh = llvm::cantFail(parse_mesh(mesh));
  request.micro_batches = micro_batches;
  return request;
}

}  // namespace plimsoll::testing
