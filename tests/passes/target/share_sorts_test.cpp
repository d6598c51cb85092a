#include "passes/analysis/plan_draft.h"
#include "tests/support/compiled_plans.h"
#include "tests/support/random_values.h"

#include <doctest/doctest.h>

// Ops that scatter rows by the same indices share a sort of these, where that is predicted to take less time.

namespace plimsoll {
namespace {

using namespace testing;

struct Shared {
  Graph before, after;
  std::map<std::string, int64_t> ops;  // nodes of each op behind the step
};

Shared shared(llvm::StringRef text) {
  const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
  const CudaCatalog catalog(h200);
  PlanDraft draft(Program{{parsed(text)}}, h200, catalog);
  PassManager passes;
  llvm::cantFail(run_steps(passes, draft, "share-sorts, dce"));
  Shared made{parsed(text), std::move(draft.program.functions.front()), {}};
  for (NodeId id : made.after.order()) ++made.ops[made.after.node(id).op->name.str()];
  return made;
}

// The softmax over the edges of each node of a graph, and sums of messages: indices are expanded, and stand in a
// column.
constexpr llvm::StringLiteral edges = R"(
graph @edges(%target: i64[90], %score: f32[90,4], %message: f32[90,4,8], %dy: f32[90,2], %more: f32[50,2]) {
  %zero = constant() {value=f32[]<0>} : f32[]
  %low = constant() {value=f32[]<-1e30>} : f32[]
  %zeros = expand(%zero) {shape=[50,4]} : f32[50,4]
  %lows = expand(%low) {shape=[90,4]} : f32[90,4]
  %wide = expand(%zero) {shape=[50,4,8]} : f32[50,4,8]
  %column = reshape(%target) {shape=[90,1]} : i64[90,1]
  %index = expand(%column) {shape=[90,4]} : i64[90,4]
  %least = scatter_elements(%zeros, %index, %lows) {axis=0, reduction="min"} : f32[50,4]
  %top = scatter_elements(%least, %index, %score) {axis=0, reduction="max"} : f32[50,4]
  %total = scatter_nd(%zeros, %column, %score) {reduction="add"} : f32[50,4]
  %sum = scatter_nd(%wide, %column, %message) {reduction="add"} : f32[50,4,8]
  %dx = gather_grad(%target, %dy, %more) {axis=0, size=50} : f32[50,2]
  %last = scatter_nd(%total, %column, %score) {reduction="none"} : f32[50,4]
  return top=%top, total=%total, sum=%sum, dx=%dx, last=%last
}
)";

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("shared sorts: scatters of all kinds by the same indices are reductions of one sort's segments") {
    Shared made = shared(edges);
    CHECK(made.ops["sort_indices"] == 1);
    CHECK(made.ops["segment_reduce"] + made.ops["gather_grad"] == 6);
    CHECK(made.ops["segment_reduce"] >= 5);
    CHECK(made.ops["scatter_elements"] + made.ops["scatter_nd"] == 0);
    CHECK(compare_results(made.before, made.after) == "");
  }

  TEST_CASE("shared sorts: a base of zeros is left out") {
    Shared made = shared(edges);
    int64_t with_base = 0;
    for (NodeId id : made.after.order())
      if (made.after.node(id).op->name == "segment_reduce")
        with_base += operand_of(made.after.node(id), "base") != ValueId::None;
    CHECK(with_base <= 3);
  }

  TEST_CASE("shared sorts: few rows that are looked through without a sort stay as they are") {
    Shared made = shared(R"(
graph @table(%kind: i64[2401], %dy: f32[2401,12], %dz: f32[2401,12]) {
  %dx = gather_grad(%kind, %dy) {axis=0, size=169} : f32[169,12]
  %du = gather_grad(%kind, %dz) {axis=0, size=169} : f32[169,12]
  return dx=%dx, du=%du
})");
    CHECK(made.ops["sort_indices"] == 0);
    CHECK(made.ops["gather_grad"] == 2);
  }

  TEST_CASE("shared sorts: forward and backward of a layer share one, and one use alone keeps its kernel") {
    Shared two = shared(R"(
graph @two(%ids: i64[100000], %dy: f32[100000,16], %dz: f32[100000,16]) {
  %dx = gather_grad(%ids, %dy) {axis=0, size=30000} : f32[30000,16]
  %du = gather_grad(%ids, %dz) {axis=0, size=30000} : f32[30000,16]
  return dx=%dx, du=%du
})");
    CHECK(two.ops["sort_indices"] == 1);
    CHECK(two.ops["segment_reduce"] == 2);
    Shared one = shared(R"(
graph @one(%ids: i64[100000], %dy: f32[100000,16]) {
  %dx = gather_grad(%ids, %dy) {axis=0, size=30000} : f32[30000,16]
  return dx=%dx
})");
    CHECK(one.ops["sort_indices"] == 0);
  }

  TEST_CASE(
      "shared sorts: indices of several dimensions and rows of a whole, and those that differ in a row are left") {
    Shared made = shared(R"(
graph @others(%pairs: i64[100000,2], %places: i64[100000,4], %x: f32[30000,4], %u: f32[100000], %v: f32[100000,4]) {
  %a = scatter_nd(%x, %pairs, %u) {reduction="add"} : f32[30000,4]
  %b = scatter_elements(%x, %places, %v) {axis=0, reduction="add"} : f32[30000,4]
  %c = scatter_elements(%x, %places, %v) {axis=0, reduction="max"} : f32[30000,4]
  return a=%a, b=%b, c=%c
})");
    CHECK(made.ops["sort_indices"] == 0);
  }
}

}  // namespace plimsoll
