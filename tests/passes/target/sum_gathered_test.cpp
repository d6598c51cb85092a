#include "passes/analysis/plan_draft.h"
#include "tests/support/compiled_plans.h"
#include "tests/support/random_values.h"

#include <doctest/doctest.h>

// Sums by row look up the rows that they add, and make the gradient of their weights, where nothing else reads these.

namespace plimsoll {
namespace {

using namespace testing;

struct Summed {
  Graph before, after;
  std::map<std::string, int64_t> ops;  // nodes of each op behind the step
};

Summed summed(llvm::StringRef text, llvm::StringRef device = "h200") {
  const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find(device));
  const CudaCatalog catalog(h200);
  PlanDraft draft(Program{{parsed(text)}}, h200, catalog);
  PassManager passes;
  llvm::cantFail(run_steps(passes, draft, "sum-gathered, share-sorts, dce"));
  Summed made{parsed(text), std::move(draft.program.functions.front()), {}};
  for (NodeId id : made.after.order()) ++made.ops[made.after.node(id).op->name.str()];
  return made;
}

// Where results differ, with indices all over the rows; an empty string if they do not.
std::string difference(const Summed& made) {
  RandomValues values;
  values.add_for(made.before);
  for (const auto& [name, step] : {std::pair("source", 77), std::pair("target", 101)}) {
    Tensor& indices = values.tensors.at(name);
    for (int64_t i = 0; i < indices.type().elements(); ++i) indices.view().set_int(i, i * step % 140000);
  }
  const Evaluation before = llvm::cantFail(evaluate(made.before, values.bind(made.before)));
  const Evaluation after = llvm::cantFail(evaluate(made.after, values.bind(made.after)));
  for (size_t i = 0; i < before.outputs.size(); ++i)
    if (std::string text = describe_difference(before.outputs[i], after.outputs[i]); !text.empty()) return text;
  return "";
}

// Two sums of one layer with a weight for each edge, forward and backward, the latter of rows in f32 that are rounded.
constexpr llvm::StringLiteral weighted = R"(
graph @weighted(%source: i64[100000], %target: i64[100000], %norm: f32[100000], %x: f32[150000,64], %dy: f32[150000,64]) {
  %zero = constant() {value=f32[]<0>} : f32[]
  %zeros = expand(%zero) {shape=[150000,64]} : f32[150000,64]
  %column = reshape(%target) {shape=[100000,1]} : i64[100000,1]
  %weights = reshape(%norm) {shape=[100000,1]} : f32[100000,1]
  %rows = gather(%x, %source) {axis=0} : f32[100000,64]
  %message = mul(%rows, %weights) : f32[100000,64]
  %y = scatter_nd(%zeros, %column, %message) {reduction="add"} : f32[150000,64]
  %drows = gather(%dy, %target) {axis=0} : f32[100000,64]
  %dmessage = mul(%weights, %drows) : f32[100000,64]
  %dx = gather_grad(%source, %dmessage) {axis=0, size=150000} : f32[150000,64]
  return y=%y, dx=%dx
}
)";

// Heads of attention over the edges of a graph: the gradient of their weights reads both lookups.
constexpr llvm::StringLiteral attention = R"(
graph @attention(%source: i64[100000], %target: i64[100000], %alpha: f32[100000,2], %x: f32[150000,2,32], %dy: f32[140000,2,32],
                 %more: f32[150000,2,32]) {
  %zero = constant() {value=f32[]<0>} : f32[]
  %zeros = expand(%zero) {shape=[140000,2,32]} : f32[140000,2,32]
  %column = reshape(%target) {shape=[100000,1]} : i64[100000,1]
  %weights = reshape(%alpha) {shape=[100000,2,1]} : f32[100000,2,1]
  %rows = gather(%x, %source) {axis=0} : f32[100000,2,32]
  %message = mul(%rows, %weights) : f32[100000,2,32]
  %y = scatter_nd(%zeros, %column, %message) {reduction="add"} : f32[140000,2,32]
  %drows = gather(%dy, %target) {axis=0} : f32[100000,2,32]
  %products = mul(%drows, %rows) : f32[100000,2,32]
  %dweights = reduce_sum(%products) {axes=[2], keep_dims=1} : f32[100000,2,1]
  %dmessage = mul(%drows, %weights) : f32[100000,2,32]
  %dx = gather_grad(%source, %dmessage, %more) {axis=0, size=150000} : f32[150000,2,32]
  return y=%y, dx=%dx, dweights=%dweights
}
)";

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("sums of looked up rows: forward and backward of a weighted sum leave no row for each edge") {
    Summed made = summed(weighted);
    CHECK(made.ops["gather_sum"] == 2);
    CHECK(made.ops["sort_indices"] == 2);
    CHECK(made.ops["gather"] == 2);  // of sources and targets in sorted order
    CHECK(made.ops["mul"] + made.ops["scatter_nd"] + made.ops["gather_grad"] == 0);
    CHECK(difference(made) == "");
  }

  TEST_CASE("sums of looked up rows: the gradient of weights comes from the sum that backward makes anyway") {
    Summed made = summed(attention);
    CHECK(made.ops["gather_sum"] == 2);
    CHECK(made.ops["gather"] == 2);
    CHECK(made.ops["mul"] + made.ops["reduce_sum"] + made.ops["scatter_nd"] + made.ops["gather_grad"] == 0);
    CHECK(difference(made) == "");
  }

  TEST_CASE("sums of looked up rows: rows that something else reads are in memory anyway, and sums stay as they are") {
    const std::string text = attention.str();
    const auto changed = [&](llvm::StringRef from, llvm::StringRef to) {
      std::string other = text;
      other.replace(other.find(from.str()), from.size(), to.str());
      return summed(other).ops["gather_sum"];
    };
    CHECK(changed("return y=%y", "return rows=%rows, y=%y") == 0);
    CHECK(changed("return y=%y", "return messages=%message, y=%y") == 0);
    CHECK(changed("return y=%y", "return products=%products, y=%y") == 0);
    // Sums over rows are no dots of them.
    CHECK(changed("axes=[2], keep_dims=1} : f32[100000,2,1]", "axes=[1], keep_dims=1} : f32[100000,1,32]") == 0);
  }

  TEST_CASE("sums of looked up rows: other scatters by the same indices share the sort, one of them even alone") {
    Summed made = summed(R"(
graph @degrees(%source: i64[100000], %target: i64[100000], %x: f32[150000,64], %score: f32[100000,4]) {
  %zero = constant() {value=f32[]<0>} : f32[]
  %zeros = expand(%zero) {shape=[150000,64]} : f32[150000,64]
  %narrow = expand(%zero) {shape=[150000,4]} : f32[150000,4]
  %column = reshape(%target) {shape=[100000,1]} : i64[100000,1]
  %rows = gather(%x, %source) {axis=0} : f32[100000,64]
  %y = scatter_nd(%zeros, %column, %rows) {reduction="add"} : f32[150000,64]
  %total = scatter_nd(%narrow, %column, %score) {reduction="add"} : f32[150000,4]
  return y=%y, total=%total
})");
    CHECK(made.ops["gather_sum"] == 1);
    CHECK(made.ops["segment_reduce"] == 1);
    CHECK(made.ops["sort_indices"] == 1);
    CHECK(difference(made) == "");
  }

  TEST_CASE("sums of looked up rows: maxima, weights of elements, f64 and lookups along another axis are left") {
    Summed made = summed(R"(
graph @others(%source: i64[100000], %target: i64[100000], %x: f32[150000,8], %w: f32[100000,8], %z: f32[100000,50], %d: f64[150000,8]) {
  %zero = constant() {value=f32[]<0>} : f32[]
  %zeros = expand(%zero) {shape=[150000,8]} : f32[150000,8]
  %wide = expand(%zero) {shape=[150000,100000]} : f32[150000,100000]
  %double = cast(%zeros) {to=f64} : f64[150000,8]
  %column = reshape(%target) {shape=[100000,1]} : i64[100000,1]
  %rows = gather(%x, %source) {axis=0} : f32[100000,8]
  %top = scatter_nd(%zeros, %column, %rows) {reduction="max"} : f32[150000,8]
  %more = gather(%x, %source) {axis=0} : f32[100000,8]
  %message = mul(%more, %w) : f32[100000,8]
  %y = scatter_nd(%zeros, %column, %message) {reduction="add"} : f32[150000,8]
  %across = gather(%z, %source) {axis=1} : f32[100000,100000]
  %v = scatter_nd(%wide, %column, %across) {reduction="add"} : f32[150000,100000]
  %doubles = gather(%d, %source) {axis=0} : f64[100000,8]
  %u = scatter_nd(%double, %column, %doubles) {reduction="add"} : f64[150000,8]
  return top=%top, y=%y, v=%v, u=%u
})");
    CHECK(made.ops["gather_sum"] == 0);
  }
}

}  // namespace plimsoll
