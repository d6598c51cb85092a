#include "passes/analysis/index_inputs.h"

#include "tests/support/small_training.h"

#include <doctest/doctest.h>

namespace plimsoll {
namespace {

using namespace testing;

// Of a table of 9 tokens of 4 numbers, logits over 7 classes for 2 samples of 5 positions each. `shift` makes of logits
// and labels what the loss compares, in so many rows.
std::vector<IndexInput> inputs_of(llvm::StringRef shift, llvm::StringRef logits, llvm::StringRef labels, int64_t rows) {
  const std::string n = std::to_string(rows);
  const std::string text =
      (R"(graph @g(%ids: i64[2,5], %labels: i64[2,5]) state(%table: f32[9,4] parameter trained, %head: f32[4,7] parameter trained) {
  %fill = constant() {value=i64[]<-100>} : i64[]
  %x = gather(%table, %ids) {axis=0} : f32[2,5,4]
  %logits = matmul(%x, %head) : f32[2,5,7]
)" + shift +
       "  %rows = reshape(" + logits + ") {shape=[" + n + ",7]} : f32[" + n + ",7]\n  %flat = reshape(" + labels +
       ") {shape=[" + n + "]} : i64[" + n + R"(]
  %loss, %lse, %weight = cross_entropy(%rows, %flat) {ignore_index=-100, reduction="mean"} : f32[], f32[)" +
       n + R"(], f32[]
  return loss=%loss
})")
          .str();
  std::vector<IndexInput> inputs = find_index_inputs(parsed(text));
  REQUIRE(inputs.size() == 2);
  CHECK(inputs[0] == IndexInput{"ids", 9, true, false, std::nullopt});
  return inputs;
}

TEST_SUITE("unit") {
  TEST_CASE("index inputs: labels that the feeder shifts have the shift 0") {
    CHECK(inputs_of("", "%logits", "%labels", 10)[1] == IndexInput{"labels", 7, false, true, 0, -100});
  }

  // logits[:, :-1] and labels[:, 1:], as Hugging Face models had it.
  TEST_CASE("index inputs: slices of logits and labels shift by one") {
    constexpr llvm::StringLiteral slices =
        R"(  %cut = slice(%logits) {sizes=[2,4,7], starts=[0,0,0], steps=[1,1,1]} : f32[2,4,7]
  %later = slice(%labels) {sizes=[2,4], starts=[0,1], steps=[1,1]} : i64[2,4]
)";
    CHECK(inputs_of(slices, "%cut", "%later", 8)[1].shift == 1);
  }

  // Labels padded at their end and then cut at their start, as Hugging Face models have it.
  TEST_CASE("index inputs: padded labels shift by one") {
    constexpr llvm::StringLiteral pad =
        R"(  %pad = pad(%labels, %fill) {after=[0,1], before=[0,0], mode="constant"} : i64[2,6]
  %later = slice(%pad) {sizes=[2,5], starts=[0,1], steps=[1,1]} : i64[2,5]
)";
    CHECK(inputs_of(pad, "%logits", "%later", 10)[1] == IndexInput{"labels", 7, false, true, 1, -100});
  }

  // The last logits meet the first labels, which shifts nothing, as both sides lack one position.
  TEST_CASE("index inputs: what both sides lack is no shift") {
    constexpr llvm::StringLiteral slices =
        R"(  %cut = slice(%logits) {sizes=[2,4,7], starts=[0,1,0], steps=[1,1,1]} : f32[2,4,7]
  %later = slice(%labels) {sizes=[2,4], starts=[0,1], steps=[1,1]} : i64[2,4]
)";
    CHECK(inputs_of(slices, "%cut", "%later", 8)[1].shift == 0);
  }
}

}  // namespace
}  // namespace plimsoll
