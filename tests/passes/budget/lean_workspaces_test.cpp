#include "passes/budget/lean_workspaces.h"

#include "ir/plan/check.h"
#include "ir/plan/summary.h"
#include "passes/budget/budget_report.h"
#include "passes/compile.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/small_training.h"

// A kernel with less workspace is taken where a budget has no room for the usual one, and nowhere else.

namespace plimsoll {
namespace {

using namespace testing;

// The first matmul is much larger than the second, so that only its workspace stands above the rest.
constexpr llvm::StringLiteral model = R"(
graph @two(%x: f32[64,32], %labels: i64[64]) state(%w1: f32[32,64] parameter trained, %w2: f32[64,4] parameter trained) {
  %h = matmul(%x, %w1) : f32[64,64]
  %a = tanh(%h) : f32[64,64]
  %y = matmul(%a, %w2) : f32[64,4]
  %loss, %lse, %weight = cross_entropy(%y, %labels) {reduction="mean"} : f32[], f32[64], f32[]
  return loss=%loss
}
)";

constexpr int64_t usual_bytes = 1 << 20, lean_bytes = 1 << 10;

// Matmuls with two kernels: the usual one, and one that takes less workspace and `lean_us`.
class TwoMatmuls : public KernelCatalog {
 public:
  explicit TwoMatmuls(double lean_us = 0) : lean_us_(lean_us) {}
  std::vector<KernelCandidate> candidates(const OpDef& op, const OpCall& call,
                                          llvm::ArrayRef<Type> results) const override {
    if (op.name != "matmul" && op.name != "linear") return cpu_.candidates(op, call, results);
    return {{"usual", usual_bytes, lean_us_ > 0 ? 1.0 : 0}, {"usual_lean", lean_bytes, lean_us_}, {"reference"}};
  }

 private:
  CpuCatalog cpu_;
  double lean_us_;
};

Plan plan_within(int64_t budget_bytes, const KernelCatalog& catalog) {
  TrainingRequest request;
  request.optimizer.kind = OptimizerKind::Sgd;
  request.budget_bytes = budget_bytes;
  request.split = 1;
  request.offload = false;
  DeviceDescription device = cpu_device();
  device.reserves.clear();
  Result<CompileResult> result = compile_training(parsed(model), request, device, catalog);
  REQUIRE_MESSAGE(bool(result), llvm::toString(result.takeError()));
  return std::move(result->plan);
}

int64_t count_of(const Plan& plan, llvm::StringRef kernel) {
  return llvm::count_if(plan.functions.front().instructions,
                        [&](const Instruction& instruction) { return instruction.kernel == kernel; });
}

TEST_SUITE("unit") {
  TEST_CASE("less workspace is one more choice of the budget search") {
    const TwoMatmuls catalog;
    const Plan plain = plan_within(0, catalog);
    const int64_t matmuls = count_of(plain, "usual");
    CHECK(count_of(plain, "usual_lean") == 0);
    REQUIRE(matmuls >= 2);
    // Without the last KiB, the matmul at the peak has no room, and no other layout is larger than it has to be.
    const Plan tight = plan_within(plain.promised_bytes() - 1024, catalog);
    CHECK(tight.promised_bytes() <= plain.promised_bytes() - 1024);
    CHECK(count_of(tight, "usual_lean") > 0);
    CHECK(tight.fit.rematerialised == 0);
    CHECK(llvm::any_of(tight.decisions, [](const Decision& each) { return each.pass == "workspace"; }));
    // No usual workspace is within this one.
    const Plan tightest = plan_within(plain.promised_bytes() - usual_bytes + 2 * lean_bytes, catalog);
    CHECK(tightest.promised_bytes() <= plain.promised_bytes() - usual_bytes + 2 * lean_bytes);
    CHECK(count_of(tightest, "usual") == 0);
  }

  TEST_CASE("which calls may have less workspace does not depend on the budget") {
    const Plan plain = plan_within(0, TwoMatmuls());
    const std::vector<CallKeys> all = lean_call_sets(plain, TwoMatmuls());
    REQUIRE(all.size() == 1);  // none is predicted to be slower
    CHECK(lean_call_sets(plain, CpuCatalog()).empty());
    // Of slower calls those of the larger product come first: at the smaller ones less than half of the peak is live.
    const TwoMatmuls slower(2);
    const std::vector<CallKeys> sets = lean_call_sets(plan_within(0, slower), slower);
    REQUIRE(!sets.empty());
    CHECK(sets.back() == all.front());
    for (size_t i = 1; i < sets.size(); ++i)
      CHECK(std::includes(sets[i].begin(), sets[i].end(), sets[i - 1].begin(), sets[i - 1].end()));
  }

  TEST_CASE("a kernel with less workspace is not predicted to be faster than the usual one") {
    const TwoMatmuls catalog(0.5);
    const LeanCatalog prefers_lean(catalog, lean_call_sets(plan_within(0, catalog), catalog).back());
    const Plan lean = plan_within(0, prefers_lean);
    REQUIRE(count_of(lean, "usual_lean") > 0);
    for (const Instruction& instruction : lean.functions.front().instructions)
      if (instruction.kernel == "usual_lean") CHECK(instruction.predicted_us == 1);
  }

  TEST_CASE("calls get their workspace back where the layout has room") {
    const TwoMatmuls catalog;
    const Plan plain = plan_within(0, catalog);
    const LeanCatalog prefers_lean(catalog, lean_call_sets(plain, catalog).front());
    Plan lean = plan_within(0, prefers_lean);
    const int64_t matmuls = count_of(lean, "usual_lean");
    REQUIRE(matmuls == count_of(plain, "usual"));
    Plan full = lean;
    CHECK(give_workspaces_back(full, catalog) == matmuls);  // no hole is as large as a usual workspace
    CHECK(count_of(full, "usual_lean") == matmuls);
    // With as much above its layout there is one for each call.
    Plan roomy = lean;
    PlanFunction& function = roomy.functions.front();
    Arena& arena = roomy.arenas.front();
    function.transient_bytes += usual_bytes, function.peak_live_bytes += usual_bytes, arena.bytes += usual_bytes;
    CHECK(give_workspaces_back(roomy, catalog) == 0);
    CHECK(count_of(roomy, "usual") == matmuls);
    CHECK(predict_step_us(roomy) == predict_step_us(lean));
    const SpaceSummary memory = summarize_space(roomy, MemorySpace::Device);
    arena.peak_live_bytes = function.peak_live_bytes = memory.at_peak.total();
    function.peak_instruction = memory.peak_instruction;
    if (Status s = check_plan(roomy)) FAIL(llvm::toString(std::move(s)));
  }

  TEST_CASE("a kernel with less workspace that is measured to be slow is no bargain") {
    const TwoMatmuls catalog(1e6);
    const Plan plain = plan_within(0, catalog);
    const Plan tight = plan_within(plain.promised_bytes() - 1024, catalog);
    if (tight.fit.rematerialised > 0) CHECK(count_of(tight, "usual_lean") == 0);
    CHECK(tight.promised_bytes() <= plain.promised_bytes() - 1024);
  }
}

}  // namespace
}  // namespace plimsoll
