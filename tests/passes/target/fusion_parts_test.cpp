#include "ir/fused_body.h"
#include "passes/pass/pass_manager.h"
#include "tests/support/compiled_plans.h"
#include "tests/support/random_values.h"

#include <doctest/doctest.h>

// Fused ops read what splits and slices take apart where it lies, and backward reads parts of saved concatenations.

namespace plimsoll {
namespace {

using namespace testing;

struct Fused {
  Graph before, after;
  std::map<std::string, int64_t> ops;
  int64_t parts = 0;
};

Fused fused(
    llvm::StringRef text, llvm::function_ref<void(Graph&)> change = [](Graph&) {}) {
  Fused made{parsed(text), parsed(text), {}};
  change(made.after);
  PassManager passes;
  llvm::cantFail(passes.run(made.after, "fuse-elementwise, dce"));
  for (NodeId id : made.after.order()) {
    ++made.ops[made.after.node(id).op->name.str()];
    made.parts += static_cast<int64_t>(operand_parts(made.after.node(id).attrs).size());
  }
  return made;
}

// Gates of the halves of rows.
constexpr llvm::StringLiteral gates = R"(
graph @gates(%x: f32[6,20], %y: f32[6,10]) {
  %a, %b = split(%x) {axis=1, sizes=[10,10]} : f32[6,10], f32[6,10]
  %s = silu(%a) : f32[6,10]
  %g = mul(%s, %b) : f32[6,10]
  %z = add(%g, %y) : f32[6,10]
  return z=%z
}
)";

// The gradient of an activation whose result is saved as a part of a concatenation, which a product's gradient reads.
constexpr llvm::StringLiteral joined = R"(
graph @joined(%x: f32[6,4], %v: f32[4,4], %w: f32[8,3], %dz: f32[6,3], %da: f32[6,4]) {
  %c = matmul(%x, %v) : f32[6,4]
  %a = relu(%c) : f32[6,4]
  %whole = concat(%x, %a) {axis=1} : f32[6,8]
  %z = matmul(%whole, %w) : f32[6,3]
  %t = transpose(%whole) {perm=[1,0]} : f32[8,6]
  %dw = matmul(%t, %dz) : f32[8,3]
  %n = neg(%a) : f32[6,4]
  %m = mul(%n, %da) : f32[6,4]
  %dc = exp(%m) : f32[6,4]
  return z=%z, dw=%dw, dc=%dc
}
)";

// What stands behind z is backward.
void divide_phases(Graph& graph) {
  bool is_backward = false;
  for (NodeId id : graph.order()) {
    if (is_backward) graph.node(id).phase = Phase::Backward;
    if (graph.node(id).results[0] == graph.find_value("z")) is_backward = true;
  }
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("parts in fused ops: a split that fused ops alone read is not made") {
    Fused made = fused(gates);
    CHECK(made.ops["split"] == 0);
    CHECK(made.ops["fused"] == 1);
    CHECK(made.parts == 2);
    CHECK(compare_results(made.before, made.after) == "");
  }

  TEST_CASE("parts in fused ops: a split that something else reads, and parts one behind the other, are left") {
    std::string other = gates.str();
    other.replace(other.find("return z"), 8, "return b=%b, z");
    Fused made = fused(other);
    CHECK(made.ops["split"] == 1);
    CHECK(made.parts == 0);
    Fused rows = fused(R"(
graph @rows(%x: f32[12,10], %y: f32[6,10]) {
  %a, %b = split(%x) {axis=0, sizes=[6,6]} : f32[6,10], f32[6,10]
  %s = silu(%a) : f32[6,10]
  %g = mul(%s, %b) : f32[6,10]
  %z = add(%g, %y) : f32[6,10]
  return z=%z
})");
    CHECK(rows.parts == 0);
    CHECK(rows.ops["split"] == 1);
  }

  TEST_CASE("parts in fused ops: backward reads what is saved in a concatenation there") {
    Fused made = fused(joined, divide_phases);
    CHECK(made.parts == 1);
    CHECK(made.ops["slice"] == 0);
    for (NodeId user : made.after.value(made.after.find_value("a")).users)
      CHECK(made.after.node(user).phase == Phase::Forward);
    CHECK(compare_results(made.before, made.after) == "");
  }

  TEST_CASE("parts in fused ops: what backward does not save, or no fused op reads, stays as it is") {
    std::string forward_alone = joined.str();
    forward_alone.replace(forward_alone.find("transpose(%whole) {perm=[1,0]} : f32[8,6]"), 41,
                          "expand(%x) {shape=[6,4]} : f32[6,4]");
    forward_alone.replace(forward_alone.find("%dw = matmul(%t, %dz) : f32[8,3]"), 32, "%dw = neg(%dz) : f32[6,3]");
    CHECK(fused(forward_alone, divide_phases).parts == 0);
    // A product reads it besides.
    std::string product = joined.str();
    product.replace(product.find("return z"), 8,
                    "%u = transpose(%a) {perm=[1,0]} : f32[4,6]\n  %o = matmul(%u, %dz) : f32[4,3]\n  return o=%o, z");
    CHECK(fused(product, divide_phases).parts == 0);
    // One elementwise op alone is not fused.
    std::string alone = joined.str();
    alone.replace(alone.find("%n = neg(%a)"), 12, "%n = copy(%da)");
    alone.replace(alone.find("mul(%n, %da)"), 12, "mul(%a, %n)");
    alone.replace(alone.find("%dc = exp(%m)"), 13, "%dc = copy(%m)");
    CHECK(fused(alone, divide_phases).ops["slice"] == 0);
  }

  TEST_CASE("parts in fused ops: a part lies inside its operand, has several elements, and is one of it") {
    const auto message = [](Ints parts) {
      const Type x(DType::F32, {6, 20}), y(DType::F32, {6, 10});
      const llvm::SmallVector<const Type*, 2> types{&x, &y};
      Attrs attrs{
          {"body", std::string("graph @body(%x0: f32[], %x1: f32[]) { %v0 = mul(%x0, %x1) : f32[] return %v0 }")}};
      attrs.set("parts", std::move(parts));
      Result<Types> made = infer(OpCall(get_op("fused"), attrs, types));
      return made ? to_string((*made)[0]) : take_diag(made.takeError()).text();
    };
    CHECK(message({0, 1, 10, 10}) == "f32[6,10]");
    const auto has = [&](Ints parts, llvm::StringRef text) { return llvm::StringRef(message(parts)).contains(text); };
    CHECK(has({0, 1, 11, 10}, "10 elements from 11 on along axis 1 are no part of operand 0, f32[6,20]"));
    CHECK(has({0, 2, 0, 10}, "along axis 2 are no part"));
    CHECK(has({0, 1, -1, 10}, "are no part"));
    CHECK(has({0, 1, 10, 1}, "1 elements from 10 on"));
    CHECK(has({0, 1, 0, 10, 0, 1, 10, 10}, "parts names operand 0"));
    CHECK(has({2, 1, 0, 10}, "parts names operand 2"));
    CHECK(has({0, 1, 0}, "parts has 3 numbers"));
    CHECK(has({0, 1, 5, 9}, "does not broadcast"));
  }
}

}  // namespace plimsoll
