#include "ir/evaluate.h"
#include "ir/plan/check.h"
#include "ir/support/strings.h"
#include "ir/text.h"
#include "passes/budget/budget_report.h"
#include "passes/compile.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/small_training.h"

#include <doctest/doctest.h>

// A plan that runs in its arena with dead bytes poisoned gives the results of the reference interpreter on its graph.

namespace plimsoll {
namespace {

using namespace testing;

constexpr llvm::StringLiteral model = R"(
graph @mlp(%x: f32[4,6], %labels: i64[4]) state(%w1: f32[6,8] parameter trained, %b1: f32[8] parameter trained, %w2: f32[3,8] parameter trained) {
  %h = linear(%x, %w1, %b1) {transpose_w=0} : f32[4,8]
  %r = reshape(%h) {shape=[2,2,8]} : f32[2,2,8]
  %g = gelu(%r) {approximate="none"} : f32[2,2,8]
  %s = reshape(%g) {shape=[4,8]} : f32[4,8]
  %y = linear(%s, %w2) {transpose_w=1} : f32[4,3]
  %loss, %lse, %weight = cross_entropy(%y, %labels) {reduction="mean"} : f32[], f32[4], f32[]
  return loss=%loss
}
)";

Graph forward() { return parsed(model); }

Plan compiled(const TrainingRequest& request) {
  CpuCatalog catalog;
  Result<Plan> plan = fitting_plan(compile_training(forward(), request, cpu_device(), catalog));
  REQUIRE_MESSAGE(bool(plan), llvm::toString(plan.takeError()));
  return std::move(*plan);
}

TEST_SUITE("unit") {
  TEST_CASE("planned steps equal the interpreter's, dead bytes poisoned") {
    for (double clip : {0.0, 0.01}) {
      TrainingRequest request;
      request.clip_grad_norm = clip;
      request.optimizer.learning_rate = 0.1;
      RandomValues values;
      values.add_for(forward());
      std::unique_ptr<Session> session = started(compiled(request), values);
      OneBatch data(values, session->inputs());
      // Step 1 has the loss of the forward graph.
      Result<Evaluation> reference = evaluate(forward(), values.bind(forward()));
      REQUIRE(bool(reference));
      Result<StepMetrics> first = session->step(data);
      REQUIRE(bool(first));
      CHECK(first->loss == doctest::Approx(reference->outputs[0].get(0)).epsilon(1e-6));
      // The loss falls on the same batch.
      double last = first->loss;
      for (int i = 0; i < 5; ++i) {
        Result<StepMetrics> next = session->step(data);
        REQUIRE(bool(next));
        CHECK(next->loss < last);
        last = next->loss;
      }
    }
  }

  TEST_CASE("two sessions of one plan give the same bits") {
    RandomValues values;
    values.add_for(forward());
    std::vector<double> losses[2];
    for (auto& run : losses) {
      std::unique_ptr<Session> session = started(compiled({}), values);
      OneBatch data(values, session->inputs());
      for (int i = 0; i < 4; ++i) run.push_back(cantFail(session->step(data)).loss);
    }
    CHECK(losses[0] == losses[1]);
  }

  // Steps of a recurrence: rows are taken out of the batch and put together, and so are parts of a parameter.
  TEST_CASE("parts that lie in their wholes give the bits of parts that are copied") {
    constexpr llvm::StringLiteral steps = R"(
graph @steps(%x: f32[4,4,16], %labels: i64[16]) state(%w: f32[32,16] parameter trained, %v: f32[8,16] parameter trained) {
  %s0, %s1, %s2, %s3 = split(%x) {axis=0, sizes=[1,1,1,1]} : f32[1,4,16], f32[1,4,16], f32[1,4,16], f32[1,4,16]
  %w0, %w1 = split(%w) {axis=0, sizes=[16,16]} : f32[16,16], f32[16,16]
  %h0 = linear(%s0, %w0) {transpose_w=1} : f32[1,4,16]
  %t0 = tanh(%h0) : f32[1,4,16]
  %h1 = linear(%s1, %w1, _, %t0) {transpose_w=1} : f32[1,4,16]
  %t1 = tanh(%h1) : f32[1,4,16]
  %h2 = linear(%s2, %w1, _, %t1) {transpose_w=1} : f32[1,4,16]
  %t2 = tanh(%h2) : f32[1,4,16]
  %h3 = linear(%s3, %w1, _, %t2) {transpose_w=1} : f32[1,4,16]
  %t3 = tanh(%h3) : f32[1,4,16]
  %y = concat(%t0, %t1, %t2, %t3) {axis=0} : f32[4,4,16]
  %r = reshape(%y) {shape=[16,16]} : f32[16,16]
  %z = linear(%r, %v) {transpose_w=1} : f32[16,8]
  %loss, %lse, %weight = cross_entropy(%z, %labels) {reduction="mean"} : f32[], f32[16], f32[]
  return loss=%loss
})";
    RandomValues values;
    values.add_for(parsed(steps));
    std::vector<double> losses[2];
    int64_t parts[2] = {}, bytes[2] = {};
    for (const int copied : {0, 1}) {
      DeviceDescription device = cpu_device();
      if (copied) device.alignment_bytes = 1 << 16;
      Plan plan = llvm::cantFail(fitting_plan(compile_training(parsed(steps), {}, device, CpuCatalog())));
      parts[copied] = llvm::count_if(plan.slots, [](const Slot& slot) { return slot.part_of >= 0; });
      for (const Slot& slot : plan.slots) bytes[copied] += slot.part_of < 0 && slot.view_of < 0 ? slot.bytes : 0;
      std::unique_ptr<Session> session = started(std::move(plan), values);
      OneBatch data(values, session->inputs());
      for (int i = 0; i < 4; ++i) losses[copied].push_back(cantFail(session->step(data)).loss);
    }
    CHECK(parts[0] > parts[1]);
    CHECK(bytes[0] < bytes[1]);
    CHECK(losses[0] == losses[1]);
  }

  // The gradient is mean(x) at every step, so that the weight falls by that times the sum of the rates.
  TEST_CASE("each update has the rate that the schedule gives for its number") {
    const Graph graph = parsed(R"(
graph @product(%x: f32[2,3]) state(%w: f32[3] parameter trained) {
  %y = mul(%x, %w) : f32[2,3]
  %loss = reduce_mean(%y) {axes=[0,1], keep_dims=0} : f32[]
  return loss=%loss
})");
    for (int64_t accumulate : {1, 2}) {
      TrainingRequest request{.accumulate = accumulate};
      request.optimizer = {.kind = OptimizerKind::Sgd, .learning_rate = 100};
      CpuCatalog catalog;
      Result<Plan> plan = fitting_plan(compile_training(graph, request, cpu_device(), catalog));
      REQUIRE(bool(plan));
      RandomValues values;
      values.add_for(graph);
      std::unique_ptr<Session> session = started(std::move(*plan), values);
      OneBatch data(values, session->inputs());
      session->set_schedule({.shape = RateShape::Linear, .peak = 0.5, .last = 0.25, .updates = 4, .warmup = 2});
      for (double rate : {0.0, 0.25, 0.5, 0.375, 0.25, 0.25})
        CHECK(cantFail(session->step(data)).learning_rate == doctest::Approx(rate));
      const Tensor &x = values.tensors.at("x"), &w = values.tensors.at("w");
      const double mean = (x.get(0) + x.get(3)) / 6;
      Status read = session->read_state("w", [&](const TensorView& now) {
        CHECK(now.get(0) == doctest::Approx(w.get(0) - 1.625 * mean).epsilon(1e-5));
        return Status::success();
      });
      CHECK_FALSE(bool(read));
      REQUIRE_FALSE(bool(session->set_learning_rate(0.125)));  // takes the schedule's place
      CHECK(cantFail(session->step(data)).learning_rate == 0.125);
    }
  }

  TEST_CASE("updates at once free gradients that clipping must keep") {
    TrainingRequest clipped;
    clipped.clip_grad_norm = 1;
    CHECK(compiled({}).arenas[0].peak_live_bytes <= compiled(clipped).arenas[0].peak_live_bytes);
  }

  TEST_CASE("a budget below the need is refused with the need and the peak") {
    Plan plan = compiled({});
    TrainingRequest request;
    request.budget_bytes = plan.promised_bytes() - 1;
    request.recompute = false;
    CpuCatalog catalog;
    Result<Plan> refused = fitting_plan(compile_training(forward(), request, cpu_device(), catalog));
    REQUIRE_FALSE(bool(refused));
    Diag diag = take_diag(refused.takeError());
    CHECK(diag.fault() == Fault::Budget);
    CHECK(starts_with(diag.text(), "needs "));
    CHECK(llvm::StringRef(diag.text()).contains("at the peak ("));
    request.budget_bytes = plan.promised_bytes();
    Result<Plan> fits = fitting_plan(compile_training(forward(), request, cpu_device(), catalog));
    CHECK(bool(fits));
  }

  TEST_CASE("another batch is followed through reshapes, and refused where it cannot be") {
    TrainingRequest request;
    request.batch = 4;
    CHECK(compiled(request).training.batch == 4);
    request.batch = 6;  // [4, 8] -> [2, 2, 8] holds the batch as 2 * 2: the leading 2 becomes 3
    Plan plan = compiled(request);
    CHECK(plan.training.batch == 6);
    request.batch = 5;
    CpuCatalog catalog;
    Result<Plan> refused = fitting_plan(compile_training(forward(), request, cpu_device(), catalog));
    REQUIRE_FALSE(bool(refused));
    CHECK(llvm::StringRef(take_diag(refused.takeError()).text()).contains("cannot become 5"));
  }

  // Exporters build a padding mask from mask[i, k] for all i and k, and fold the indices.
  TEST_CASE("another batch is followed through a table of all indices") {
    Result<Graph> graph = parse_graph(R"(
graph @masked(%x: f32[2,3], %mask: bool[2,3]) state(%w: f32[3] parameter trained) {
  %at = constant() {value=i64[2,1,3,2]<0,0,0,1,0,2,1,0,1,1,1,2>} : i64[2,1,3,2]
  %all = gather_nd(%mask, %at) {batch_dims=0} : bool[2,1,3]
  %flat = reshape(%all) {shape=[2,3]} : bool[2,3]
  %y = mul(%x, %w) : f32[2,3]
  %zero = constant() {value=f32[]<0.0>} : f32[]
  %kept = where(%flat, %y, %zero) : f32[2,3]
  %loss = reduce_mean(%kept) {axes=[0,1], keep_dims=0} : f32[]
  return loss=%loss
})");
    REQUIRE_MESSAGE(bool(graph), llvm::toString(graph.takeError()));
    TrainingRequest request;
    request.batch = 5;
    CpuCatalog catalog;
    Result<Plan> plan = fitting_plan(compile_training(std::move(*graph), request, cpu_device(), catalog));
    REQUIRE_MESSAGE(bool(plan), llvm::toString(plan.takeError()));
    CHECK(plan->training.batch == 5);
  }
}

}  // namespace
}  // namespace plimsoll
