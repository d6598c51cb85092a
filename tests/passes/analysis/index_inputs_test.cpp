#include "passes/analysis/index_inputs.h"

#include "tests/support/small_training.h"

#include <doctest/doctest.h>

namespace plimsoll {
namespace {

using namespace testing;

// Of a table of 9 tokens of 4 numbers, logits over 7 classes for 2 samples of 5 positions each.
std::vector<IndexInput> inputs_of(llvm::StringRef loss) {
  const std::string text =
      (R"(graph @g(%ids: i64[2,5], %labels: i64[2,5]) state(%table: f32[9,4] parameter trained, %head: f32[4,7] parameter trained) {
  %fill = constant() {value=i64[]<-100>} : i64[]
  %x = gather(%table, %ids) {axis=0} : f32[2,5,4]
  %logits = matmul(%x, %head) : f32[2,5,7]
)" + loss +
       R"(
  return loss=%loss
})")
          .str();
  return find_index_inputs(parsed(text));
}

constexpr llvm::StringLiteral end_of_loss =
    "  %loss, %lse, %weight = cross_entropy(%rows, %flat) {ignore_index=-100, reduction=\"mean\"}";

TEST_SUITE("unit") {
  TEST_CASE("index inputs: labels that the feeder shifts have the shift 0") {
    const std::vector<IndexInput> inputs = inputs_of((R"(  %rows = reshape(%logits) {shape=[10,7]} : f32[10,7]
  %flat = reshape(%labels) {shape=[10]} : i64[10]
)" + end_of_loss + " : f32[], f32[10], f32[]")
                                                         .str());
    REQUIRE(inputs.size() == 2);
    CHECK(inputs[0] == IndexInput{"ids", 9, true, false, std::nullopt});
    CHECK(inputs[1] == IndexInput{"labels", 7, false, true, 0});
  }

  // logits[:, :-1] and labels[:, 1:], as Hugging Face models had it.
  TEST_CASE("index inputs: slices of logits and labels shift by one") {
    const std::vector<IndexInput> inputs =
        inputs_of((R"(  %cut = slice(%logits) {sizes=[2,4,7], starts=[0,0,0], steps=[1,1,1]} : f32[2,4,7]
  %later = slice(%labels) {sizes=[2,4], starts=[0,1], steps=[1,1]} : i64[2,4]
  %rows = reshape(%cut) {shape=[8,7]} : f32[8,7]
  %flat = reshape(%later) {shape=[8]} : i64[8]
)" + end_of_loss + " : f32[], f32[8], f32[]")
                      .str());
    REQUIRE(inputs.size() == 2);
    CHECK(inputs[1].shift == 1);
  }

  // Labels padded at their end and then cut at their start, as Hugging Face models have it.
  TEST_CASE("index inputs: padded labels shift by one") {
    const std::vector<IndexInput> inputs =
        inputs_of((R"(  %pad = pad(%labels, %fill) {after=[0,1], before=[0,0], mode="constant"} : i64[2,6]
  %later = slice(%pad) {sizes=[2,5], starts=[0,1], steps=[1,1]} : i64[2,5]
  %rows = reshape(%logits) {shape=[10,7]} : f32[10,7]
  %flat = reshape(%later) {shape=[10]} : i64[10]
)" + end_of_loss + " : f32[], f32[10], f32[]")
                      .str());
    REQUIRE(inputs.size() == 2);
    CHECK(inputs[1] == IndexInput{"labels", 7, false, true, 1});
  }

  // The last logits meet the first labels, which shifts nothing, as both sides lack one position.
  TEST_CASE("index inputs: what both sides lack is no shift") {
    const std::vector<IndexInput> inputs =
        inputs_of((R"(  %cut = slice(%logits) {sizes=[2,4,7], starts=[0,1,0], steps=[1,1,1]} : f32[2,4,7]
  %later = slice(%labels) {sizes=[2,4], starts=[0,1], steps=[1,1]} : i64[2,4]
  %rows = reshape(%cut) {shape=[8,7]} : f32[8,7]
  %flat = reshape(%later) {shape=[8]} : i64[8]
)" + end_of_loss + " : f32[], f32[8], f32[]")
                      .str());
    REQUIRE(inputs.size() == 2);
    CHECK(inputs[1].shift == 0);
  }

  TEST_CASE("index inputs: their text is read back") {
    for (const IndexInput& input : {IndexInput{"ids", 50257, true, false, std::nullopt},
                                    IndexInput{"ids", 9, true, true, 1}, IndexInput{"ids", 9, false, true, -2}})
      CHECK(parse_index_input("ids", to_text(input)) == input);
    CHECK(!parse_index_input("ids", "indices below many"));
    CHECK(!parse_index_input("ids", "something else"));
  }
}

}  // namespace
}  // namespace plimsoll
