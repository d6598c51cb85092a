#include "passes/fuse_launches.h"

#include "ir/plan/check.h"
#include "ir/plan/summary.h"
#include "ir/support/align.h"
#include "tests/support/compiled_plans.h"

#include <doctest/doctest.h>

// Finished plans, in which a gelu and the product before it become one instruction where no byte moves for that.

namespace plimsoll {
namespace {

using namespace testing;

// Most bytes are live behind the last product.
constexpr llvm::StringLiteral model = R"(
graph @block(%x: f32[4096,768], %labels: i64[4096]) state(%w0: f32[768,3072] parameter trained, %b0: f32[3072] parameter trained, %w1: f32[3072,8192] parameter trained, %b1: f32[8192] parameter trained) {
  %h = linear(%x, %w0, %b0) : f32[4096,3072]
  %a = gelu(%h) {approximate="tanh"} : f32[4096,3072]
  %z = linear(%a, %w1, %b1) : f32[4096,8192]
  %loss, %lse, %weight = cross_entropy(%z, %labels) {reduction="mean"} : f32[], f32[4096], f32[]
  return loss=%loss
}
)";

Plan plan_for(const char* device, const char* precision = "bf16") {
  TrainingRequest request;
  request.precision = precision;
  Result<Plan> plan = compiled(model, request, device);
  REQUIRE_MESSAGE(bool(plan), llvm::toString(plan.takeError()));
  return std::move(*plan);
}

CudaCatalog hopper() { return CudaCatalog(llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h100"))); }

size_t count_of(const Plan& plan, llvm::StringRef op) {
  return static_cast<size_t>(
      llvm::count_if(plan.functions.front().instructions, [&](const Instruction& each) { return each.op == op; }));
}

size_t index_of(const Plan& plan, llvm::StringRef op) {
  const auto& all = plan.functions.front().instructions;
  const auto found = llvm::find_if(all, [&](const Instruction& each) { return each.op == op; });
  REQUIRE(found != all.end());
  return static_cast<size_t>(found - all.begin());
}

const Instruction& only(const Plan& plan, llvm::StringRef op) {
  return plan.functions.front().instructions[index_of(plan, op)];
}

Slot& result_of(Plan& plan, llvm::StringRef op) {
  return plan.slots[static_cast<size_t>(only(plan, op).results.back())];
}

void require_checked(const Plan& plan) {
  if (Status s = check_plan(plan)) FAIL(llvm::toString(std::move(s)));
}

// Puts an instruction in front of that one, with bytes of its own behind all others.
void insert_before(Plan& plan, int32_t at) {
  PlanFunction& function = plan.functions.front();
  for (Slot& slot : plan.slots) {
    if (slot.function != 0) continue;
    slot.first += slot.first >= at;
    slot.last += slot.last >= at;
  }
  for (PlanGradient& gradient : plan.gradients) gradient.instruction += gradient.instruction >= at;
  function.peak_instruction += function.peak_instruction >= at;
  const SlotId x = only(plan, "linear").operands[0];
  Slot slot = plan.slots[static_cast<size_t>(x)];
  slot.name = "between", slot.function = 0, slot.first = slot.last = at, slot.view_of = slot.in_place_of = -1;
  slot.category = Category::Temporary;
  Arena& arena = plan.arenas.front();
  slot.offset = align_up(arena.bytes, plan.device.alignment_bytes);
  arena.bytes = slot.offset + slot.bytes;
  function.transient_bytes = arena.bytes - arena.persistent_bytes;
  Instruction neg;
  neg.op = "neg", neg.kernel = "vectors", neg.operands = {x};
  neg.results = {static_cast<SlotId>(plan.slots.size())};
  plan.slots.push_back(std::move(slot));
  function.instructions.insert(function.instructions.begin() + at, std::move(neg));
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("fused launches: no slot moves, no peak rises and the checker agrees") {
    const Plan apart = plan_for("a100");
    REQUIRE(count_of(apart, "gelu") == 1);
    Plan fused = apart;
    REQUIRE(fuse_launches(fused, hopper()));
    require_checked(fused);
    CHECK(count_of(fused, "gelu") == 0);
    CHECK(count_of(fused, "linear") + 1 == count_of(apart, "linear"));
    const Instruction& both = only(fused, "linear_gelu");
    CHECK(both.kernel == "warpgroup_gelu");
    CHECK(both.attrs.get_string("approximate") == "tanh");
    CHECK(both.results == std::vector<SlotId>{only(apart, "gelu").operands[0], only(apart, "gelu").results[0]});
    CHECK(fused.functions[0].instructions.size() + 1 == apart.functions[0].instructions.size());
    CHECK(fused.arenas[0].bytes == apart.arenas[0].bytes);
    CHECK(fused.functions[0].peak_live_bytes == apart.functions[0].peak_live_bytes);
    REQUIRE(fused.slots.size() == apart.slots.size());
    for (size_t i = 0; i < fused.slots.size(); ++i) CHECK(fused.slots[i].offset == apart.slots[i].offset);
    CHECK(decides(fused, "fuse-launches", "train_step", "1 gelu by their products", "saves"));
    CHECK_FALSE(fuse_launches(fused, hopper()));
  }

  TEST_CASE("fused launches: plans for Hopper have them, with the time that is predicted so") {
    const Plan plan = plan_for("h100");
    CHECK(only(plan, "linear_gelu").kernel == "warpgroup_gelu");
    CHECK(plan.predicted_step_us == predict_step_us(plan));
    CHECK(count_of(plan_for("h100", "fp32"), "linear_gelu") == 0);
    CHECK(count_of(plan_for("a100"), "linear_gelu") == 0);
    CHECK(count_of(plan_for(nullptr), "linear_gelu") == 0);
  }

  TEST_CASE("fused launches: what stands between a product and its gelu stands behind both") {
    Plan plan = plan_for("a100");
    insert_before(plan, static_cast<int32_t>(index_of(plan, "gelu")));
    require_checked(plan);
    REQUIRE(fuse_launches(plan, hopper()));
    require_checked(plan);
    CHECK(index_of(plan, "neg") == index_of(plan, "linear_gelu") + 1);
  }

  TEST_CASE("fused launches: a gelu whose bytes are in use, or are too many, stays where it is") {
    const Plan plan = plan_for("a100");
    Plan over_operand = plan;
    result_of(over_operand, "gelu").offset = plan.slots[static_cast<size_t>(only(plan, "linear").operands[0])].offset;
    CHECK_FALSE(fuse_launches(over_operand, hopper()));
    Plan in_place = plan;
    result_of(in_place, "gelu").in_place_of = only(plan, "gelu").operands[0];
    CHECK_FALSE(fuse_launches(in_place, hopper()));
    Plan at_peak = plan;
    at_peak.functions[0].peak_live_bytes = at_peak.arenas[0].persistent_bytes;
    CHECK_FALSE(fuse_launches(at_peak, hopper()));
    Plan made_again = plan;
    made_again.functions[0].instructions[index_of(plan, "gelu")].phase = Phase::Backward;
    CHECK_FALSE(fuse_launches(made_again, hopper()));
    CHECK_FALSE(fuse_launches(over_operand, CudaCatalog(plan.device)));
  }
}
}  // namespace plimsoll
