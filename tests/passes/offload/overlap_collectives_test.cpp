#include "passes/analysis/plan_draft.h"
#include "tests/support/compiled_plans.h"

#include <doctest/doctest.h>

// Where large sums and gathers are issued. Small ones, which the reference can compute as well, are in
// overlap_collectives/.

namespace plimsoll {
namespace {

using namespace testing;

// The places of the named values in the order that overlap-collectives makes for two H200.
std::vector<size_t> places(llvm::StringRef text, llvm::ArrayRef<llvm::StringRef> names) {
  const DeviceDescription device = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
  const CudaCatalog catalog(device);
  PlanDraft draft(Program{{parsed(text)}}, device, catalog);
  PassManager passes;
  llvm::cantFail(run_steps(passes, draft, "overlap-collectives"));
  const Graph& graph = draft.program.functions.front();
  const std::vector<NodeId> order = graph.order();
  std::vector<size_t> found;
  for (llvm::StringRef name : names) {
    const NodeId maker = graph.value(graph.find_value(name)).producer;
    found.push_back(static_cast<size_t>(llvm::find(order, maker) - order.begin()));
  }
  return found;
}

TEST_SUITE("unit") {
  TEST_CASE("a sum is issued where the fewest products run beside it") {
    const std::vector<size_t> at = places(R"(
graph @step(%x: f32[4096,4096]) state(%wa: f32[4096,4096] parameter trained, %wb: f32[4096,4096] parameter trained) {
  %a = exp(%x) : f32[4096,4096]
  %p = matmul(%x, %x) : f32[4096,4096]
  %e1 = exp(%p) : f32[4096,4096]
  %e2 = exp(%e1) : f32[4096,4096]
  %e3 = exp(%e2) : f32[4096,4096]
  %e4 = exp(%e3) : f32[4096,4096]
  %e5 = exp(%e4) : f32[4096,4096]
  %e6 = exp(%e5) : f32[4096,4096]
  %e7 = exp(%e6) : f32[4096,4096]
  %b = exp(%e7) : f32[4096,4096]
  %q = matmul(%p, %p) : f32[4096,4096]
  %ga = reduce_all(%a) {axis="data", ranks=2} : f32[4096,4096] phase=update
  %wa.next = sub(%wa, %ga) : f32[4096,4096] phase=update
  %gb = reduce_all(%b) {axis="data", ranks=2} : f32[4096,4096] phase=update
  %wb.next = sub(%wb, %gb) : f32[4096,4096] phase=update
  return %q
  update %wa = %wa.next
  update %wb = %wb.next
})",
                                          {"a", "p", "ga", "e1", "b", "gb", "q"});
    CHECK(llvm::is_sorted(at));
  }

  TEST_CASE("a weight's gradient waits for a gather that backward reads at once, and runs beside it") {
    const std::vector<size_t> at = places(R"(
graph @step(%x: bf16[16384,4096]) state(%w: f32[4096,4096] parameter trained, %v: f32[4096,4096] parameter trained) {
  %d = linear_dw(%x, %x) {dtype=f32} : f32[4096,4096] phase=backward
  %all = gather_pieces(%x) {axis="data", ranks=2, shape=[32768,4096]} : bf16[32768,4096] phase=backward
  %e = exp(%all) : bf16[32768,4096] phase=backward
  %f = linear_dw(%e, %e) {dtype=f32} : f32[4096,4096] phase=backward
  %s = reduce_all(%d) {axis="data", ranks=2} : f32[4096,4096] phase=update
  %w.next = sub(%w, %s) : f32[4096,4096] phase=update
  %t = reduce_all(%f) {axis="data", ranks=2} : f32[4096,4096] phase=update
  %v.next = sub(%v, %t) : f32[4096,4096] phase=update
  return %e
  update %w = %w.next
  update %v = %v.next
})",
                                          {"all", "d", "e", "f"});
    CHECK(llvm::is_sorted(at));
  }

  TEST_CASE("ranks along data have products that write their gelus") {
    const char* text = R"(
graph @mlp(%x: f32[4096,1024], %t: f32[4096,1024]) state(%w: f32[1024,4096] parameter trained, %b: f32[4096] parameter trained, %u: f32[4096,1024] parameter trained) {
  %h = linear(%x, %w, %b) : f32[4096,4096]
  %g = gelu(%h) : f32[4096,4096]
  %y = linear(%g, %u) : f32[4096,1024]
  return y=%y
})";
    TrainingRequest request;
    request.loss = "mse:y:t";
    request.precision = "bf16";
    request.mesh[MeshAxis::Data] = 2;
    request.budget_bytes = int64_t{100} << 30;
    const Plan plan = llvm::cantFail(compiled(text, request, "h200"));
    const auto computes = [&](llvm::StringRef op) {
      return llvm::any_of(plan.functions.front().instructions, [&](const Instruction& each) { return each.op == op; });
    };
    CHECK(computes("linear_gelu"));
    CHECK_FALSE(computes("gelu"));
  }
}

}  // namespace
}  // namespace plimsoll
