#include "ir/plan/summary.h"
#include "tests/support/compiled_plans.h"

#include <doctest/doctest.h>

// Products that write the gelus of their results, in programs of plans that keep everything.

namespace plimsoll {
namespace {

using namespace testing;

constexpr llvm::StringLiteral block = R"(
graph @block(%x: f32[4096,768], %labels: i64[4096]) state(%w0: f32[768,3072] parameter trained, %b0: f32[3072] parameter trained, %w1: f32[3072,3072] parameter trained, %w2: f32[3072,4096] parameter trained) {
  %h = linear(%x, %w0, %b0) : f32[4096,3072]
  %a = gelu(%h) {approximate="none"} : f32[4096,3072]
  %y = linear(%a, %w1) : f32[4096,3072]
  %b = gelu(%y) {approximate="tanh"} : f32[4096,3072]
  %z = linear(%b, %w2) : f32[4096,4096]
  %loss, %lse, %weight = cross_entropy(%z, %labels) {reduction="mean"} : f32[], f32[4096], f32[]
  return loss=%loss
}
)";

TrainingRequest within(int64_t budget_bytes) {
  TrainingRequest request;
  request.precision = "bf16";
  request.budget_bytes = budget_bytes;
  return request;
}

Plan plan_for(const TrainingRequest& request) {
  Result<Plan> plan = compiled(block, request, "h100");
  REQUIRE_MESSAGE(bool(plan), llvm::toString(plan.takeError()));
  return std::move(*plan);
}

int64_t joined_in(const Plan& plan) {
  return llvm::count_if(plan.functions.front().instructions,
                        [](const Instruction& each) { return each.op == "linear_gelu"; });
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("joined gelus: a plan that keeps everything has them, with the time that is predicted so") {
    const Plan plan = plan_for(within(0));
    CHECK(joined_in(plan) == 2);
    CHECK(decides(plan, "join-gelus", "gelus", "2 are written by their products", "saves"));
    CHECK(plan.predicted_step_us == predict_step_us(plan));
  }

  TEST_CASE("joined gelus: not of 32 bits, and not where backward does not read what the product writes") {
    TrainingRequest whole = within(0), frozen = whole;
    whole.precision = "fp32";
    CHECK(joined_in(plan_for(whole)) == 0);
    frozen.freeze = {"w0", "b0"};
    CHECK(decides(plan_for(frozen), "join-gelus", "gelus", "1 is written by their products", "saves"));
  }

  TEST_CASE("joined gelus: more budget gives no slower plan, and what a plan promises is enough for it") {
    const Plan best = plan_for(within(0));
    double us = std::numeric_limits<double>::infinity();
    for (int64_t percent : {96, 97, 98, 99, 100, 101}) {
      CAPTURE(percent);
      const Plan plan = plan_for(within(best.promised_bytes() * percent / 100));
      CHECK(plan.predicted_step_us <= us);
      us = plan.predicted_step_us;
      CHECK(plan_for(within(plan.promised_bytes())).predicted_step_us == us);
    }
    CHECK(us == best.predicted_step_us);
  }
}

}  // namespace plimsoll
