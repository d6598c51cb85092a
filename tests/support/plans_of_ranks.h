#pragma once

// Plans of a small perceptron with dropout and ignored labels on any mesh.

#include "passes/compile.h"
#include "passes/train/optimizer_settings.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/small_training.h"

namespace plimsoll::testing {

inline constexpr llvm::StringLiteral perceptron = R"(
graph @mlp(%x: f32[12,6], %labels: i64[12]) state(%w1: f32[6,300] parameter trained, %b1: f32[300] parameter trained, %w2: f32[300,13] parameter trained, %rng: i64[2] counter fill=0.0) {
  %h = linear(%x, %w1, %b1) : f32[12,300]
  %d = dropout(%h, %rng) {id=0, ratio=0.25} : f32[12,300]
  %g = gelu(%d) {approximate="none"} : f32[12,300]
  %y = linear(%g, %w2) : f32[12,13]
  %loss, %lse, %weight = cross_entropy(%y, %labels) {ignore_index=1, reduction="mean"} : f32[], f32[12], f32[]
  return loss=%loss
}
)";

inline Plan plan_for(llvm::StringRef mesh, int zero, int64_t accumulate, llvm::StringRef text = perceptron,
                     OptimizerKind optimizer = OptimizerKind::AdamW) {
  TrainingRequest request;
  request.optimizer = default_optimizer(optimizer);
  request.mesh = llvm::cantFail(parse_mesh(mesh));
  request.zero = zero;
  request.accumulate = accumulate;
  request.clip_grad_norm = 0.5;
  request.optimizer.eps = 1e-3;
  const CpuCatalog catalog;
  Result<CompileResult> result = compile_training(parsed(text), request, cpu_device(), catalog);
  REQUIRE_MESSAGE(bool(result), llvm::toString(result.takeError()));
  return std::move(result->plan);
}

inline Plan plan_for(int64_t ranks, int zero, int64_t accumulate) {
  return plan_for("data=" + std::to_string(ranks), zero, accumulate);
}

}  // namespace plimsoll::testing
