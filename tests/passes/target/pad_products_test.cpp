#include "tests/support/step_gradients.h"
#include "tests/support/tensor_distance.h"

#include <doctest/doctest.h>

// Whole training steps of models with odd sizes: gradients with padding are those without.

namespace plimsoll {
namespace {

using namespace testing;

constexpr llvm::StringLiteral mixer = R"(
graph @mixer(%x: f32[8,20,16], %labels: i64[8]) state(
    %scale: f32[16] parameter trained, %shift: f32[16] parameter trained, %w1: f32[32,20] parameter trained,
    %b1: f32[32] parameter trained, %w2: f32[32,20] parameter trained, %b2: f32[20] parameter trained,
    %head: f32[21,16] parameter trained, %b3: f32[21] parameter trained
) {
  %n, %mean, %rstd = layer_norm(%x, %scale, %shift) {axis=2, eps=0.001} : f32[8,20,16], f32[8,20,1], f32[8,20,1]
  %t = transpose(%n) {perm=[0,2,1]} : f32[8,16,20]
  %h = linear(%t, %w1, %b1) {transpose_w=1} : f32[8,16,32]
  %g = gelu(%h) : f32[8,16,32]
  %m = linear(%g, %w2, %b2) : f32[8,16,20]
  %u = transpose(%m) {perm=[0,2,1]} : f32[8,20,16]
  %y = add(%x, %u) : f32[8,20,16]
  %pooled = reduce_mean(%y) {axes=[1], keep_dims=0} : f32[8,16]
  %logits = linear(%pooled, %head, %b3) {transpose_w=1} : f32[8,21]
  %loss, %lse, %weight = cross_entropy(%logits, %labels) {label_smoothing=0.1, reduction="mean"} : f32[], f32[8], f32[]
  return loss=%loss
}
)";

constexpr llvm::StringLiteral recurrent = R"(
graph @recurrent(%x: f32[256,20], %labels: i64[256]) state(
    %w: f32[40,20] parameter trained, %b: f32[40] parameter trained, %head: f32[48,20] parameter trained
) {
  %q1 = linear(%x, %w, %b) {transpose_w=1} : f32[256,40]
  %o1, %g1 = split(%q1) {axis=1, sizes=[20,20]} : f32[256,20], f32[256,20]
  %s1 = sigmoid(%o1) : f32[256,20]
  %t1 = tanh(%g1) : f32[256,20]
  %h1 = mul(%s1, %t1) : f32[256,20]
  %q2 = linear(%h1, %w, %b) {transpose_w=1} : f32[256,40]
  %o2, %g2 = split(%q2) {axis=1, sizes=[20,20]} : f32[256,20], f32[256,20]
  %s2 = sigmoid(%o2) : f32[256,20]
  %t2 = tanh(%g2) : f32[256,20]
  %h2 = mul(%s2, %t2) : f32[256,20]
  %logits = linear(%h2, %head) {transpose_w=1} : f32[256,48]
  %loss, %lse, %weight = cross_entropy(%logits, %labels) {reduction="mean"} : f32[], f32[256], f32[]
  return loss=%loss
}
)";

struct Way {
  const char* name;
  TrainingRequest request;
};

std::vector<Way> ways(llvm::StringRef split_from) {
  std::vector<Way> all{{"plain", {}}, {"accumulated", {}}, {"in chunks", {}}};
  all[1].request.accumulate = 2;
  all[2].request.split = 2;
  all[2].request.split_from = split_from.str();
  return all;
}

Graph after(llvm::StringRef model, const std::string& pipeline) {
  Graph graph = parsed(model);
  llvm::cantFail(PassManager().run(graph, pipeline));
  return graph;
}

void check_model(llvm::StringRef model, llvm::StringRef options, llvm::StringRef split_from) {
  const Graph odd = after(model, "insert-casts{to=bf16}");
  const Graph padded = after(model, ("insert-casts{to=bf16}, pad-products{" + options + "}").str());
  REQUIRE(llvm::StringRef(to_text(padded)).count(" = pad(") > 2);
  for (const Way& way : ways(split_from)) {
    CAPTURE(std::string(way.name));
    const std::map<std::string, Tensor> expected = gradients_of_step(odd, model, way.request);
    const std::map<std::string, Tensor> found = gradients_of_step(padded, model, way.request);
    REQUIRE(found.size() == expected.size());
    for (const auto& [name, gradient] : expected) {
      CAPTURE(name);
      REQUIRE(found.at(name).type() == gradient.type());
      CHECK(distance(found.at(name), gradient) < 3e-3);
    }
  }
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("pad-products: gradients of mixed tokens are those without padding") {
    check_model(mixer, "kernel-bytes=0", "g");
  }
  TEST_CASE("pad-products: gradients of a recurrent layer are those without padding") {
    check_model(recurrent, "kernel-bytes=20000", "h1");
  }
}

}  // namespace plimsoll
