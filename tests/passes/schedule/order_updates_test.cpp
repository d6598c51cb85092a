#include "passes/schedule/order.h"

#include <doctest/doctest.h>

using namespace plimsoll;

namespace {

OrderNode node(llvm::ArrayRef<int32_t> inputs, llvm::ArrayRef<int32_t> outputs, llvm::ArrayRef<int32_t> after) {
  OrderNode n;
  n.inputs.assign(inputs.begin(), inputs.end());
  n.outputs.assign(outputs.begin(), outputs.end());
  n.after.assign(after.begin(), after.end());
  return n;
}

}  // namespace

TEST_SUITE("unit") {
  // Buffers: two small gradients 0 and 1, a large one 2, the norm 3, and pinned states 4, 5, 6.
  TEST_CASE("updates whose gradients live on stand behind their last reader, those that end a life stay") {
    OrderProblem problem;
    problem.buffer_bytes = {8, 8, 1000, 4, 8, 8, 1000};
    problem.pinned = {false, false, false, false, true, true, true};
    problem.nodes = {
        node({}, {0}, {}),          // 0: small gradient
        node({0, 4}, {4}, {0}),     // 1: its update
        node({4}, {}, {1}),         // 2: what follows from the update
        node({}, {2}, {}),          // 3: large gradient
        node({2, 6}, {6}, {3}),     // 4: its update, the end of its life
        node({}, {1}, {}),          // 5: small gradient
        node({1, 5}, {5}, {5}),     // 6: its update
        node({0, 1}, {3}, {0, 5}),  // 7: the sum that both small ones share
        node({3}, {}, {7}),         // 8: what reads it
    };
    const std::vector<int32_t> kinds = {-1, 0, 1, -1, 0, -1, 0, 2, 2};
    std::vector<int32_t> order = with_idle_updates_gathered(problem, {0, 1, 2, 3, 4, 5, 6, 7, 8}, kinds);
    CHECK(order == std::vector<int32_t>{0, 3, 4, 5, 7, 1, 6, 2, 8});
    CHECK(peak_bytes(problem, order) == 1008);
  }

  TEST_CASE("updates stay where gathering them would raise the peak") {
    // The update of 0 is the last reader of 2 as well: behind the sum, 2 would meet the 100 bytes of 3.
    OrderProblem problem;
    problem.buffer_bytes = {8, 4, 4, 100};
    problem.nodes = {node({}, {0, 2}, {}), node({0, 2}, {}, {0}), node({}, {3}, {}), node({3, 0}, {1}, {2})};
    const std::vector<int32_t> order = {0, 1, 2, 3};
    CHECK(with_idle_updates_gathered(problem, order, {-1, 0, -1, 1}) == order);
  }

  // Statistics 0 and 1 with their updates; backward reads 1 first. A gradient 2 of another kind has its last reader
  // between.
  TEST_CASE("updates of one kind share the earliest place that serves them") {
    OrderProblem problem;
    problem.buffer_bytes = {8, 8, 8, 8, 8, 8};
    problem.pinned = {false, false, false, true, true, true};
    problem.nodes = {
        node({}, {0}, {}),       // 0: statistics
        node({0, 3}, {3}, {0}),  // 1: their update
        node({}, {1}, {}),       // 2: statistics
        node({1, 4}, {4}, {2}),  // 3: their update
        node({1}, {2}, {2}),     // 4: backward of 1 makes a gradient
        node({2, 5}, {5}, {4}),  // 5: its update
        node({2}, {}, {4}),      // 6: another reader of the gradient
        node({0}, {}, {0}),      // 7: backward of 0
    };
    const std::vector<int32_t> order =
        with_idle_updates_gathered(problem, {0, 1, 2, 3, 4, 5, 6, 7}, {-1, 0, -1, 0, -1, 1, -1, -1});
    CHECK(order == std::vector<int32_t>{0, 2, 4, 1, 3, 6, 5, 7});
  }
}
