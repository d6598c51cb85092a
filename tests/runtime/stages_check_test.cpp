#include "ir/plan/serialize.h"
#include "tests/support/pipeline_plans.h"
#include "tests/support/refused_plan.h"

// The checker refuses plans of pipelines whose stages would not meet, or hold more than their devices have.

namespace plimsoll {
namespace {

using namespace testing;

TEST_SUITE("unit") {
  TEST_CASE("ranks on unlike devices that run one plan are held to their own budgets") {
    TrainingRequest request;
    request.mesh = llvm::cantFail(parse_mesh("data=2"));
    request.zero = 1;
    const DeviceDescription quick = cpu_device(), slow = slower(3);
    Plan good = llvm::cantFail(compiled_on({least_of({quick, slow})}, parsed(tied_attention), request)).plan;
    CHECK(good.device.name == "cpu+slow");
    good.kinds = {{quick, good.promised_bytes(), {0}}, {slow, good.promised_bytes() + 1, {1}}};
    REQUIRE_FALSE(bool(check_plan(good)));
    CHECK(good.device_of(0).name == "cpu");
    CHECK(good.device_of(1).name == "slow");
    const Plan read = llvm::cantFail(plan_from_bytes(llvm::cantFail(plan_to_bytes(good))));
    REQUIRE(read.kinds.size() == 2);
    CHECK(read.kinds[1].budget_bytes == good.kinds[1].budget_bytes);
    CHECK(read.kinds[1].ranks == std::vector<int64_t>{1});
    CHECK(to_json(read.kinds[1].device) == to_json(slow));
    auto mutated = [&](auto change, llvm::StringRef message) {
      Plan plan = good;
      change(plan);
      check_refused(plan, message);
    };
    mutated([](Plan& plan) { --plan.kinds[0].budget_bytes; }, "cpu: arena and reserves need");
    mutated([](Plan& plan) { plan.kinds[1].ranks.clear(); }, "rank 1 has 0 devices");
    mutated([](Plan& plan) { plan.kinds[1].ranks = {0, 1}; }, "rank 0 has 2 devices");
    mutated([](Plan& plan) { plan.kinds[1].ranks = {1, 2}; }, "rank 2 does not run this plan");
    mutated([](Plan& plan) { ++plan.kinds[1].device.reserves[0].bytes; }, "is not planned");
    mutated([](Plan& plan) { plan.kinds[1].device.backend = "cuda"; }, "the plan is for the backend cpu");
    mutated([](Plan& plan) { plan.kinds[0].device.alignment_bytes *= 2; }, "it wants");
    mutated([](Plan& plan) { plan.device.compute_capability = 90; }, "kernels are those of compute capability 90");
  }

  TEST_CASE("mutated plans of pipelines are rejected") {
    PipelineSchedule schedule = PipelineSchedule::OneForwardOneBackward;
    SUBCASE("1f1b") {}
    SUBCASE("zero-bubble") { schedule = PipelineSchedule::ZeroBubble; }
    SUBCASE("interleaved") { schedule = PipelineSchedule::Interleaved; }
    SUBCASE("v") { schedule = PipelineSchedule::V; }
    const Plan good = plan_for(parsed(tied_attention), on_mesh("stage=2", 2, schedule));
    auto mutated = [&](auto change, llvm::StringRef message) {
      Plan plan = good;
      change(plan, plan.later_stages.front());
      check_refused(plan, message);
    };
    auto all = [](Plan& plan, llvm::StringRef op) {
      std::vector<Instruction*> found;
      for (Instruction& each : plan.functions[0].instructions)
        if (each.op == op) found.push_back(&each);
      REQUIRE(found.size() > 1);
      return found;
    };
    mutated([&](Plan& p, Plan&) { std::swap(all(p, "send")[0]->attrs, all(p, "send")[1]->attrs); }, "expects");
    mutated([&](Plan& p, Plan&) { all(p, "send")[0]->attrs.set("peer", int64_t{0}); }, "has no such peer");
    mutated([&](Plan& p, Plan&) { all(p, "send")[0]->attrs.set("ranks", int64_t{3}); }, "the mesh is stage=2");
    mutated([&](Plan&, Plan& q) { all(q, "receive")[0]->attrs.set("number", int64_t{7}); }, "expects 7");
    mutated(
        [&](Plan&, Plan& q) {
          auto& instructions = q.functions[0].instructions;
          for (Instruction& each : instructions)
            if (each.op == "send") {
              each.op = "neg", each.attrs = {};
              return;
            }
        },
        "");
    // The loss is broadcast by the stage that has it: another root on one stage, on both, or no value there.
    auto broadcast = [](Plan& plan) -> Instruction& {
      return *llvm::find_if(plan.functions[0].instructions, [](const Instruction& i) { return i.op == "broadcast"; });
    };
    mutated([&](Plan& p, Plan&) { broadcast(p).attrs.set("root", 1 - broadcast(p).attrs.get_int("root")); },
            "is of what stage");
    mutated(
        [&](Plan& p, Plan& q) {
          const int64_t root = 1 - broadcast(p).attrs.get_int("root");
          for (Plan* plan : {&p, &q}) broadcast(*plan).attrs.set("root", root);
        },
        "is of what stage");
    mutated(
        [&](Plan& p, Plan& q) {
          for (Plan* plan : {&p, &q}) broadcast(*plan).attrs.set("root", int64_t{2});
        },
        "root is 2 of 2 ranks");
    mutated([&](Plan& p, Plan&) { broadcast(p).op = "reduce_all"; }, "");
    mutated([&](Plan& p, Plan&) { p.later_stages.clear(); }, "has 2 stages, the plan has 1");
    mutated([&](Plan&, Plan& q) { q.stage = 0; }, "is of what stage");
    mutated([&](Plan&, Plan& q) { q.training.accumulate = 2; }, "accumulates 2 times");
    mutated(
        [&](Plan& p, Plan& q) {
          std::vector<Instruction*> sends = all(p, "send");
          const size_t last = sends.size() - 1;
          sends[last]->attrs.set("peer", int64_t{1});
          all(q, "receive")[0]->attrs.set("peer", int64_t{0});
          std::swap(sends[0]->attrs, sends[last]->attrs);
        },
        "");
    // A receive that nothing waits for until the end is read too early.
    for (const Plan* stage : good.stages())
      for (size_t i = 0; i < stage->functions[0].instructions.size(); ++i) {
        const Instruction& receive = stage->functions[0].instructions[i];
        if (receive.op != "receive" || receive.done < 0) continue;
        mutated(
            [&](Plan& p, Plan& q) {
              PlanFunction& function = (stage->stage == 0 ? p : q).functions[0];
              function.instructions[i].done = static_cast<int32_t>(function.instructions.size());
            },
            "");
      }
  }

  TEST_CASE("ranks of a stage stay in step with what another stage sends them") {
    const Plan good = plan_for(parsed(packed_blocks), on_mesh("tensor=2,stage=2", 4));
    REQUIRE_FALSE(bool(check_plan(good)));
    // Each stage adds up what its ranks make of the gradients that they received, their own summands.
    for (size_t stage : {0, 1}) {
      CAPTURE(stage);
      Plan plan = good;
      for (Instruction& each : (stage == 0 ? plan : plan.later_stages.front()).functions[0].instructions)
        if (each.op == "reduce_all" && each.attrs.get_string("axis") == axis_name(MeshAxis::Tensor))
          each.op = "neg", each.attrs = {}, each.done = -1;
      check_refused(plan, "along tensor");
    }
  }
}

}  // namespace
}  // namespace plimsoll
