#include "ir/plan/summary.h"
#include "ir/plan/validate.h"
#include "passes/analysis/buffer_assignment.h"
#include "tests/support/compiled_plans.h"

#include <doctest/doctest.h>

#include <map>

// What one launch does together is planned and predicted so.

namespace plimsoll {
namespace {

using namespace testing;

// Four small layers with biases, and a large weight.
constexpr llvm::StringLiteral model = R"(
graph @layers(%x: f32[512,1024], %labels: i64[512]) state(%w0: f32[1024,1024] parameter trained, %b0: f32[1024] parameter trained, %w1: f32[1024,16] parameter trained, %b1: f32[16] parameter trained, %w2: f32[16,16] parameter trained, %b2: f32[16] parameter trained, %w3: f32[16,16] parameter trained, %b3: f32[16] parameter trained) {
  %h0 = linear(%x, %w0, %b0) : f32[512,1024]
  %a0 = relu(%h0) : f32[512,1024]
  %h1 = linear(%a0, %w1, %b1) : f32[512,16]
  %a1 = relu(%h1) : f32[512,16]
  %h2 = linear(%a1, %w2, %b2) : f32[512,16]
  %a2 = relu(%h2) : f32[512,16]
  %z = linear(%a2, %w3, %b3) : f32[512,16]
  %loss, %lse, %weight = cross_entropy(%z, %labels) {reduction="mean"} : f32[], f32[512], f32[]
  return loss=%loss
}
)";

Plan plan_for(const char* device = nullptr) {
  TrainingRequest request;
  request.precision = "bf16";
  request.is_short = true;  // such a plan casts its parameters in every step
  Result<Plan> plan = compiled(model, request, device);
  REQUIRE_MESSAGE(bool(plan), llvm::toString(plan.takeError()));
  return std::move(*plan);
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("updates and casts of small parameters share launches on a GPU") {
    const Plan plan = plan_for("h200");
    const DeviceDescription& device = plan.device;
    std::map<std::string, int64_t> calls, joined, small;
    const std::vector<Instruction>& all = plan.functions.front().instructions;
    for (size_t i = 0; i < all.size(); ++i) {
      ++calls[all[i].op];
      small[all[i].op] += all[i].predicted_us < device.launch_us;
      if (!all[i].joined) continue;
      ++joined[all[i].op];
      REQUIRE(i > 0);
      CHECK(all[i].op == all[i - 1].op);
      CHECK(all[i].kernel == all[i - 1].kernel);
      Instruction alone = all[i];
      alone.joined = false;
      CHECK(roofline_us(plan, alone) == doctest::Approx(roofline_us(plan, all[i]) + device.launch_us));
    }
    CHECK(calls["adamw"] == 8);
    CHECK(small["adamw"] == 7);  // all but the large weight
    CHECK(joined["adamw"] >= 5);
    CHECK(joined["cast"] >= 5);
    CHECK(joined.size() == 2);
  }

  // Where norms took the bytes of a gradient that the launch reads, it would end between the two.
  TEST_CASE("norms of updates that share a launch live from its first update on") {
    Graph graph = parsed(R"(
graph @updates(%g: f32[4096], %h: f32[4096]) state(%v: f32[4096] parameter trained, %w: f32[4096] parameter trained, %lr: f32[] counter fill=0.1) {
  %v.next, %first = sgd(%v, %g, %lr) {norms=1} : f32[4096], f32[4] phase=update
  %w.next, %second = sgd(%w, %h, %lr) {norms=1} : f32[4096], f32[4] phase=update
  return %first, %second
  update %v = %v.next
  update %w = %w.next
}
)");
    const std::vector<NodeId> writers = make_updates_writable(graph);
    const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
    const auto first_of = [&](const KernelCatalog& catalog) {
      const BufferAssignment assignment = assign_buffers(graph, writers, {}, catalog);
      const auto second = static_cast<size_t>(graph.find_value("second"));
      return assignment.buffers[static_cast<size_t>(assignment.buffer_of[second])].first;
    };
    CHECK(first_of(CudaCatalog(h200)) == 0);
    CHECK(first_of(CpuCatalog()) == 1);
  }

  TEST_CASE("a plan whose instruction joins no launch of its kernel is refused") {
    Plan plan = plan_for("h200");
    REQUIRE_FALSE(bool(validate_plan(plan)));
    plan.functions.front().instructions.front().joined = true;
    CHECK(llvm::StringRef(llvm::toString(validate_plan(plan))).contains("joins no launch of its kernel"));
  }

  TEST_CASE("nothing shares a launch on the CPU") {
    const Plan plan = plan_for();
    CHECK(llvm::none_of(plan.functions.front().instructions, [](const Instruction& each) { return each.joined; }));
  }
}
}  // namespace plimsoll
