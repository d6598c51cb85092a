#include "passes/budget/program_size.h"
#include "tests/support/rank_trainer.h"
#include "tests/support/small_training.h"

#include <doctest/doctest.h>

namespace plimsoll {
namespace {

using namespace testing;

Program program_in(int64_t chunks) {
  TrainingRequest request;
  request.adapters.rank = 2;
  request.adapters.alpha = 6;
  const ForwardModel forward = forward_of(parsed(packed_blocks), request);
  SplitChoice split;
  if (chunks > 1) split = {forward.graph.find_value("x"), chunks};
  Result<Program> program = make_program(forward, split, request);
  REQUIRE_MESSAGE(bool(program), llvm::toString(program.takeError()));
  return std::move(*program);
}

TEST_SUITE("unit") {
  // Eight matrices of adapters have an update each, and the four of B a product with the scale. A chunk more has
  // neither: about as many nodes as are counted, but for slices of the inputs and sums of gradients.
  TEST_CASE("program size: updates and what parameters alone decide are not made again for each chunk") {
    const Program whole = program_in(1);
    const int64_t rows = nodes_of_rows(whole), all = nodes_of(whole);
    CHECK(all - rows >= 12);
    const int64_t two = nodes_of(program_in(2)), four = nodes_of(program_in(4));
    const auto of_chunk = static_cast<double>(four - two) / 2;
    CHECK(of_chunk > 0.8 * static_cast<double>(rows));
    CHECK(of_chunk < 1.25 * static_cast<double>(rows));
    CHECK(of_chunk < static_cast<double>(all) - 12);
  }
}

}  // namespace
}  // namespace plimsoll
