#pragma once

// Steps of all ranks of a divided program, interpreted together, beside those of the program that one rank runs.

#include "ir/verify.h"
#include "passes/compile.h"
#include "passes/derive_program.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/rank_trainer.h"
#include "tests/support/small_training.h"

#include <doctest/doctest.h>

namespace plimsoll::testing {

inline Program program_of(const Graph& forward, const TrainingRequest& request) {
  const CpuCatalog catalog;
  Result<Derived> derived = derive_program(forward_of(forward, request), {}, request, cpu_device(), catalog, {});
  REQUIRE_MESSAGE(bool(derived), llvm::toString(derived.takeError()));
  REQUIRE_FALSE(bool(verify(derived->draft.program)));
  return std::move(derived->draft.program);
}

// Trains two steps on one rank and on several, which must agree.
inline void check_divided(const Graph& forward, TrainingRequest request, double tolerance) {
  const Mesh mesh = request.mesh;
  TrainingRequest alone = request;
  alone.mesh = {};
  Program plain = program_of(forward, alone), divided = program_of(forward, request);
  RandomValues values;
  for (const Graph& function : plain.functions) values.add_for(function);
  values.tensors["rng"] = Tensor::of_ints({7, 0});
  RankTrainer one(std::move(plain), {}, values), many(std::move(divided), mesh, values);
  for (int step = 0; step < 2; ++step) {
    const double loss = one.step(request.accumulate).front();
    for (double each : many.step(request.accumulate))
      if (!std::isnan(loss)) CHECK(each == doctest::Approx(loss).epsilon(tolerance));
  }
  for (const auto& [name, state] : one.states(0))
    for (size_t rank = 0; rank < static_cast<size_t>(mesh.ranks()); ++rank) {
      CAPTURE(name);
      CAPTURE(rank);
      const Tensor& own = many.states(rank).at(name);
      if (name.find(".accumulated") != std::string::npos) continue;  // cleared
      check_close(own, many.own_part(name, state, static_cast<int64_t>(rank)), tolerance);
    }
}

inline TrainingRequest request_of(llvm::StringRef mesh) {
  TrainingRequest request;
  request.mesh = llvm::cantFail(parse_mesh(mesh));
  request.optimizer.kind = OptimizerKind::Sgd;
  request.optimizer.momentum = 0.9;
  return request;
}

inline TrainingRequest request_of(int64_t ranks) { return request_of("data=" + std::to_string(ranks)); }

}  // namespace plimsoll::testing
