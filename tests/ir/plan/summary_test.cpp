#include "ir/plan/summary.h"
#include "ir/plan/serialize.h"
#include "ir/plan/snapshot_bytes.h"
#include "passes/compile.h"
#include "runtime/checkpoint/snapshot.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/pipeline_plans.h"
#include "tests/support/refused_plan.h"

#include <doctest/doctest.h>

// What the report says of a plan's time, and of what its ranks hold of their hosts.

namespace plimsoll {
namespace {

using namespace testing;

Plan plan_within(const Graph& forward, int64_t budget_bytes) {
  const CpuCatalog catalog;
  TrainingRequest request;
  request.budget_bytes = budget_bytes;
  Result<CompileResult> result = compile_training(forward, request, cpu_device(), catalog);
  REQUIRE_MESSAGE(bool(result), llvm::toString(result.takeError()));
  REQUIRE(result->fits);
  return std::move(result->plan);
}

TEST_SUITE("unit") {
  TEST_CASE("model FLOPs are those of matmuls forward and backward, however much is made again") {
    const Graph forward = parsed(R"(
graph @two_layers(%x: f32[512,64]) state(%w: f32[64,256] parameter trained, %v: f32[256,64] parameter trained) {
  %h = linear(%x, %w) : f32[512,256]
  %g = gelu(%h) {approximate="tanh"} : f32[512,256]
  %y = linear(%g, %v) : f32[512,64]
  %loss = reduce_mean(%y) {axes=[0,1], keep_dims=0} : f32[]
  return loss=%loss
}
)");
    const Plan plain = plan_within(forward, 0);
    const TimeSummary time = summarize_time(plain);
    // Two products forward; backward the gradients of both matrices and of %g.
    CHECK(time.model_flops == doctest::Approx(5 * 2.0 * 512 * 64 * 256));
    CHECK(model_flops_utilisation(plain) ==
          doctest::Approx(time.model_flops / (plain.device.matmul_tflops_for(DType::F32) * 1e6) / time.step_us));

    const Plan smaller = plan_within(forward, plain.promised_bytes() - (64 << 10));
    REQUIRE(smaller.fit.rematerialised > 0);
    CHECK(summarize_time(smaller).model_flops == time.model_flops);

    // By the data sheet the device is twice as fast, of which half as much is used.
    Plan on_sheet = plain;
    on_sheet.device.peak_tflops = {{DType::F32, 2 * plain.device.matmul_tflops_for(DType::F32)}};
    CHECK(model_flops_utilisation(on_sheet) == doctest::Approx(model_flops_utilisation(plain) / 2));
  }

  TEST_CASE("what ranks hold of a host is added up, and is within its memory") {
    TrainingRequest request = on_mesh("data=2,stage=2", 2);
    request.cache_bytes = 1000;
    request.ranks_per_host = 2, request.host_memory_bytes = 1 << 20;
    request.checkpoints = true;
    Plan plan = plan_for(parsed(tied_attention), request);
    const Plan &first = plan, &second = plan.later_stages.front();
    const std::vector<HostNeed> hosts = needs_of_hosts(plan);
    REQUIRE(hosts.size() == 2);
    // The ranks of a stage are on one host, and the first of all takes the snapshot.
    CHECK(hosts[0].bytes == 2 * (first.loading_bytes() + 1000) + first.host.snapshot_bytes);
    CHECK(hosts[1].bytes == 2 * (second.loading_bytes() + 1000));
    CHECK(hosts[1].first_rank == 2);
    CHECK(first.host.budget_bytes == 1 << 20);
    const Plan read = llvm::cantFail(plan_from_bytes(llvm::cantFail(plan_to_bytes(plan))));
    CHECK(read.host == plan.host);
    // Three ranks a host do not come out even.
    plan.host.ranks_per_host = 3;
    CHECK(needs_of_hosts(plan).back().ranks == 1);
    plan.host.ranks_per_host = 2;
    plan.host.memory_bytes = hosts[0].bytes;
    for (Plan& stage : plan.later_stages) stage.host = plan.host, stage.host.snapshot_bytes = 0;
    CHECK_FALSE(bool(check_plan(plan)));
    const std::string holds =
        "the host of ranks 0 to 1 holds " + std::to_string(hosts[0].bytes) + " bytes for them, its ";
    Plan small = plan, tight = plan, elsewhere = plan;
    --small.host.memory_bytes;
    for (Plan& stage : small.later_stages) --stage.host.memory_bytes;
    check_refused(small, holds + "memory is ");
    tight.host.budget_bytes = hosts[0].bytes - 1;
    for (Plan& stage : tight.later_stages) stage.host.budget_bytes = tight.host.budget_bytes;
    check_refused(tight, holds + "budget is ");
    ++elsewhere.later_stages.front().host.budget_bytes;
    check_refused(elsewhere, "stage 1 is on other hosts than stage 0");
    // Four ranks on one host.
    plan.host.ranks_per_host = plan.later_stages.front().host.ranks_per_host = 0;
    check_refused(plan, "the host of ranks 0 to 3 holds " + std::to_string(hosts[0].bytes + hosts[1].bytes));
  }

  TEST_CASE("the budget of a host is that of all its ranks") {
    TrainingRequest request = on_mesh("data=2", 1);
    const Plan plan = plan_for(parsed(tied_attention), request);
    const int64_t rank_bytes = plan.host_bytes();
    REQUIRE(rank_bytes > 0);
    const auto fits = [&](int64_t budget, int64_t ranks_per_host) {
      request.host_budget_bytes = budget, request.ranks_per_host = ranks_per_host;
      return llvm::cantFail(compile_training(parsed(tied_attention), request, cpu_device(), CpuCatalog())).fits;
    };
    CHECK(fits(2 * rank_bytes, 0));
    CHECK_FALSE(fits(2 * rank_bytes - 1, 0));
    CHECK(fits(rank_bytes, 1));
    // The lesser of both limits holds.
    request.host_memory_bytes = rank_bytes;
    CHECK_FALSE(fits(2 * rank_bytes, 2));
  }

  TEST_CASE("what is held back for a snapshot holds it, whatever ranks divide") {
    for (const char* mesh : {"data=1", "data=2", "tensor=2", "data=2,stage=2"}) {
      CAPTURE(mesh);
      TrainingRequest request = on_mesh(mesh, 2);
      if (request.mesh[MeshAxis::Stage] == 1) request.schedule.reset();
      request.zero = request.mesh[MeshAxis::Data] > 1 ? 3 : 0;
      request.checkpoints = true;
      request.accumulate = 2;
      const Plan plan = plan_for(parsed(tied_attention), request);
      const int64_t needs = Snapshot::bytes_for(whole_states_of(plan));
      CHECK(plan.host.snapshot_bytes == snapshot_bytes(plan));
      CHECK(plan.host.snapshot_bytes >= needs);
      CHECK(plan.host.snapshot_bytes < needs + 150 * static_cast<int64_t>(whole_states_of(plan).size()) + 200);
      for (const Plan& stage : plan.later_stages) CHECK(stage.host.snapshot_bytes == 0);
    }
  }
}

}  // namespace
}  // namespace plimsoll
