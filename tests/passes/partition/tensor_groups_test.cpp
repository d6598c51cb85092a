#include "passes/partition/tensor_groups.h"

#include "tests/support/plans_of_ranks.h"

#include "llvm/ADT/STLExtras.h"

#include <doctest/doctest.h>

// Which of the dimensions that could be divided is: by what ranks then hold and send.

namespace plimsoll {
namespace {

using namespace testing;

// How a layer of 300 hidden features and so many classes is divided among two ranks; of the dimensions that it may
// have.
TensorGroup group_of_last_layer(int64_t classes, llvm::ArrayRef<int64_t> dims) {
  const std::string was = "13]", now = std::to_string(classes) + "]";
  std::string text = perceptron.str();
  for (size_t at = text.find(was); at != std::string::npos; at = text.find(was, at + now.size()))
    text.replace(at, was.size(), now);
  const Graph graph = parsed(text);
  const TensorGroups groups = choose_tensor_groups(
      graph, 2, Rows::Whole, [&](const State&, const Cut& cut) { return llvm::is_contained(dims, cut.dim); });
  REQUIRE(groups.taken.size() == 1);
  CHECK(graph.value(groups.taken[0].seed).name == "w2");
  return groups.taken[0];
}

TEST_SUITE("unit") {
  // A rank has 7 of 13 classes, or 150 of 300 features. The features save 1,950 numbers of a state and the classes
  // 1,800, of 16 bytes. The sum over features sends 1,248 bytes, both ways; that is less than the difference.
  TEST_CASE("tensor groups: what divides evenly is preferred to classes that do not, though it sends more") {
    const TensorGroup chosen = group_of_last_layer(13, {0, 1}), classes = group_of_last_layer(13, {1});
    CHECK(chosen.cuts.at(chosen.seed).dim == 0);
    CHECK(chosen.saved_state_bytes == doctest::Approx(16 * 1950));
    CHECK(chosen.sent_bytes == doctest::Approx(1248));
    CHECK(classes.cuts.at(classes.seed).dim == 1);
    CHECK(classes.saved_state_bytes == doctest::Approx(16 * 1800));
    CHECK(classes.sent_bytes < chosen.sent_bytes);
    CHECK(classes.gain() < chosen.gain());
  }

  // Both save as much of the states, and the losses of rows are fewer bytes than their scores.
  TEST_CASE("tensor groups: of classes and features that divide evenly the classes are divided") {
    const TensorGroup chosen = group_of_last_layer(14, {0, 1}), features = group_of_last_layer(14, {0});
    CHECK(chosen.cuts.at(chosen.seed).dim == 1);
    CHECK(chosen.saved_state_bytes == doctest::Approx(features.saved_state_bytes));
    CHECK(chosen.sent_bytes < features.sent_bytes);
  }
}

}  // namespace
}  // namespace plimsoll
