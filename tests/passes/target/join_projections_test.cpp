#include "tests/support/step_gradients.h"
#include "tests/support/tensor_distance.h"

#include <doctest/doctest.h>

// Whole training steps in 16 bits: gradients of weights whose products are joined are those of products apart.

namespace plimsoll {
namespace {

using namespace testing;

constexpr llvm::StringLiteral attending = R"(
graph @attending(%x: f32[4,6,16], %labels: i64[24]) state(
    %qw: f32[16,16] parameter trained, %kw: f32[8,16] parameter trained, %vw: f32[8,16] parameter trained,
    %qb: f32[16] parameter trained, %vb: f32[8] parameter trained, %head: f32[11,16] parameter trained
) {
  %q = linear(%x, %qw, %qb) {transpose_w=1} : f32[4,6,16]
  %k = linear(%x, %kw) {transpose_w=1} : f32[4,6,8]
  %v = linear(%x, %vw, %vb) {transpose_w=1} : f32[4,6,8]
  %y, %lse = attention(%q, %k, %v) {causal=1, heads=4, kv_heads=2, scale=0.5} : f32[4,6,16], f32[4,4,6]
  %sum = add(%x, %y) : f32[4,6,16]
  %logits = linear(%sum, %head) {transpose_w=1} : f32[4,6,11]
  %rows = reshape(%logits) {shape=[24,11]} : f32[24,11]
  %loss, %row_lse, %weight = cross_entropy(%rows, %labels) {reduction="mean"} : f32[], f32[24], f32[]
  return loss=%loss
}
)";

std::map<std::string, Tensor> gradients(const std::string& pipeline, const TrainingRequest& request) {
  Graph graph = parsed(attending);
  llvm::cantFail(PassManager().run(graph, pipeline));
  return gradients_of_step(graph, attending, request);
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("join-projections: gradients are those of products apart") {
    Graph graph = parsed(attending);
    llvm::cantFail(PassManager().run(graph, "insert-casts{to=bf16}, join-projections, dce"));
    REQUIRE(llvm::StringRef(to_text(graph)).contains("packed=1"));
    TrainingRequest plain, accumulated, in_chunks;
    accumulated.accumulate = 2;
    in_chunks.split = 2;
    for (const TrainingRequest& request : {plain, accumulated, in_chunks}) {
      const auto expected = gradients("insert-casts{to=bf16}", request);
      const auto found = gradients("insert-casts{to=bf16}, join-projections, dce", request);
      REQUIRE(found.size() == 6);
      for (const auto& [name, gradient] : expected) {
        CAPTURE(name);
        REQUIRE(found.at(name).type() == gradient.type());
        CHECK(distance(found.at(name), gradient) < 3e-3);
      }
    }
  }
}

}  // namespace plimsoll
