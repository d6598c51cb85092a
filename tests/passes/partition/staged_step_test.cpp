#include "ir/support/strings.h"
#include "ir/verify.h"
#include "passes/compile.h"
#include "passes/derive_stages.h"
#include "passes/partition/divide_stages.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/random_training.h"
#include "tests/support/rank_trainer.h"
#include "tests/support/small_training.h"

#include <doctest/doctest.h>

#include <random>

// Steps of all stages of a pipeline, interpreted together, equal those of the program that one rank runs.

namespace plimsoll {
namespace {

using namespace testing;

StageRuns runs_of(const TrainingRequest& request) {
  return runs_of_schedule(*request.schedule, request.mesh[MeshAxis::Stage], request.runs_per_stage);
}

std::vector<Program> programs_of(const Graph& forward, const TrainingRequest& request) {
  const CpuCatalog catalog;
  const ForwardModel model = forward_of(forward, request);
  std::vector<Program> programs;
  if (request.mesh[MeshAxis::Stage] == 1) {
    Result<Derived> derived = derive_program(model, {}, request, cpu_device(), catalog, {});
    REQUIRE_MESSAGE(bool(derived), llvm::toString(derived.takeError()));
    programs.push_back(std::move(derived->draft.program));
  } else {
    Result<DerivedStages> derived =
        derive_stages(model, request, runs_of(request), StageDevices(cpu_device(), catalog), {});
    REQUIRE_MESSAGE(bool(derived), llvm::toString(derived.takeError()));
    for (Derived& stage : derived->stages) programs.push_back(std::move(stage.draft.program));
  }
  for (const Program& program : programs) REQUIRE_FALSE(bool(verify(program)));
  return programs;
}

// Trains two steps on one rank and on several, which must agree. Every state is on some stage.
void check_staged(const Graph& forward, const TrainingRequest& request, double tolerance) {
  TrainingRequest alone = request;
  alone.mesh = {};
  std::vector<Program> plain = programs_of(forward, alone), staged = programs_of(forward, request);
  RandomValues values;
  for (const Graph& function : plain.front().functions) values.add_for(function);
  values.tensors["rng"] = Tensor::of_ints({7, 0});
  RankTrainer one(std::move(plain), {}, values), many(std::move(staged), request.mesh, values);
  for (int step = 0; step < 2; ++step) {
    const double loss = one.step(request.accumulate).front();
    for (double each : many.step(request.accumulate)) CHECK(each == doctest::Approx(loss).epsilon(tolerance));
  }
  for (const auto& [name, state] : one.states(0)) {
    CAPTURE(name);
    int found = 0;
    for (int64_t rank = 0; rank < request.mesh.ranks(); ++rank) {
      const Tensors& states = many.states(static_cast<size_t>(rank));
      if (!states.count(name)) continue;
      ++found;
      const Tensor& own = states.at(name);
      if (name.find(".accumulated") != std::string::npos) continue;  // cleared
      check_close(own, many.own_part(name, state, rank), tolerance);
    }
    CHECK(found > 0);
  }
}

TrainingRequest request_of_stages(int64_t stages, int64_t micro_batches) {
  TrainingRequest request;
  request.mesh[MeshAxis::Stage] = stages;
  request.micro_batches = micro_batches;
  request.schedule = PipelineSchedule::OneForwardOneBackward;
  request.optimizer.kind = OptimizerKind::Sgd;
  request.optimizer.momentum = 0.9;
  return request;
}

// Four layers whose norms share one scale, as exporters leave weights that begin alike.
constexpr llvm::StringLiteral shared_norm = R"(
graph @shared_norm(%x: f64[4,6], %labels: i64[4]) state(%s: f64[6] parameter trained, %a: f64[6,6] parameter trained, %b: f64[6,6] parameter trained, %c: f64[6,6] parameter trained, %d: f64[6,6] parameter trained) {
  %n, %rstd = rms_norm(%x, %s) {axis=1, eps=0.001} : f64[4,6], f64[4,1]
  %y = linear(%n, %a) : f64[4,6]
  %n.1, %rstd.1 = rms_norm(%y, %s) {axis=1, eps=0.001} : f64[4,6], f64[4,1]
  %y.1 = linear(%n.1, %b) : f64[4,6]
  %n.2, %rstd.2 = rms_norm(%y.1, %s) {axis=1, eps=0.001} : f64[4,6], f64[4,1]
  %y.2 = linear(%n.2, %c) : f64[4,6]
  %n.3, %rstd.3 = rms_norm(%y.2, %s) {axis=1, eps=0.001} : f64[4,6], f64[4,1]
  %y.3 = linear(%n.3, %d) : f64[4,6]
  %loss, %lse, %weight = cross_entropy(%y.3, %labels) {ignore_index=-100, reduction="mean"} : f64[], f64[4], f64[]
  return loss=%loss
}
)";

TEST_SUITE("unit") {
  TEST_CASE("stages of a pipeline train as one rank does: attention, dropout, a tied embedding, ignored labels") {
    for (int64_t stages : {2, 3})
      for (int64_t micro_batches : {1, 2})
        for (int64_t accumulate : {1, 3}) {
          const double clip = accumulate == 1 ? 0.05 : 0;
          for (auto schedule : {PipelineSchedule::OneForwardOneBackward, PipelineSchedule::ZeroBubble}) {
            CAPTURE(stages);
            CAPTURE(micro_batches);
            CAPTURE(accumulate);
            CAPTURE(schedule);
            TrainingRequest request = request_of_stages(stages, micro_batches);
            request.schedule = schedule;
            request.accumulate = accumulate;
            request.clip_grad_norm = clip;
            check_staged(parsed(tied_attention), request, 1e-9);
          }
        }
  }

  TEST_CASE("stages with several runs of layers train as one rank does") {
    for (int64_t micro_batches : {1, 2})
      for (int64_t accumulate : {1, 3}) {
        CAPTURE(micro_batches);
        CAPTURE(accumulate);
        TrainingRequest request = request_of_stages(2, micro_batches);
        request.accumulate = accumulate;
        request.clip_grad_norm = accumulate == 1 ? 0.05 : 0;
        request.schedule = PipelineSchedule::V;
        check_staged(parsed(tied_attention), request, 1e-9);
        if (micro_batches == 1) continue;
        request.schedule = PipelineSchedule::Interleaved;
        check_staged(parsed(tied_attention), request, 1e-9);
      }
  }

  TEST_CASE("a scale that several runs of both stages read gets its gradient from all of them") {
    for (auto schedule : {PipelineSchedule::OneForwardOneBackward, PipelineSchedule::ZeroBubble,
                          PipelineSchedule::Interleaved, PipelineSchedule::V}) {
      CAPTURE(schedule);
      TrainingRequest request = request_of_stages(2, 2);
      request.schedule = schedule;
      check_staged(parsed(shared_norm), request, 1e-9);
    }
  }

  TEST_CASE("stages whose ranks share the batch train as one rank does") {
    for (int zero : {0, 1, 2, 3}) {
      CAPTURE(zero);
      TrainingRequest request = request_of_stages(2, 1);
      request.mesh[MeshAxis::Data] = 2;
      request.zero = zero;
      request.optimizer.kind = OptimizerKind::AdamW;
      request.optimizer.eps = 1e-2;
      request.clip_grad_norm = 0.05;
      check_staged(parsed(tied_attention), request, 1e-9);
    }
  }

  TEST_CASE("stages whose ranks have parts of tensors train as one rank does") {
    for (llvm::StringRef model : {packed_blocks, grouped_block})
      for (llvm::StringRef mesh : {"tensor=2,stage=2", "tensor=2,stage=3", "data=2,tensor=2,stage=2"})
        for (int zero : {0, 1, 3})
          for (int64_t accumulate : {1, 2}) {
            CAPTURE(model.take_front(20).str());
            CAPTURE(mesh.str());
            CAPTURE(zero);
            CAPTURE(accumulate);
            TrainingRequest request = request_of_stages(2, 2);
            request.mesh = llvm::cantFail(parse_mesh(mesh));
            if (zero > 0 && request.mesh[MeshAxis::Data] == 1) continue;
            request.zero = zero;
            request.accumulate = accumulate;
            request.clip_grad_norm = accumulate == 2 ? 0.05 : 0;
            check_staged(parsed(model), request, 1e-9);
          }
  }

  TEST_CASE("random models in two and three stages train as on one rank") {
    std::mt19937 random(11);
    int staged = 0;
    for (int i = 0; i < 60; ++i) {
      const RandomJob job = random_job(random);
      CAPTURE(job.text);
      TrainingRequest request = job.request;
      CAPTURE(request.accumulate);
      CAPTURE(request.clip_grad_norm);
      request.mesh[MeshAxis::Stage] = 2 + static_cast<int64_t>(random() % 2);
      request.mesh[MeshAxis::Tensor] = 1 + i % 2;
      request.schedule = static_cast<PipelineSchedule>(random() % std::size(schedule_names));
      request.optimizer.eps = 1e-2;  // tiny gradients decide the direction of an update otherwise
      request.precision = "exported";
      const Graph forward = parsed(job.text);
      const CpuCatalog catalog;
      Result<DerivedStages> derived = derive_stages(forward_of(forward, request), request, runs_of(request),
                                                    StageDevices(cpu_device(), catalog), {});
      if (!derived) {
        const std::string refusal = take_diag(derived.takeError()).text();
        CAPTURE(refusal);
        const bool is_clear = starts_with(refusal, "the model cannot be") || starts_with(refusal, "the schedule ");
        CHECK(is_clear);
        continue;
      }
      ++staged;
      check_staged(forward, request, 2e-3);
    }
    CHECK(staged > 20);
  }
}

}  // namespace
}  // namespace plimsoll
