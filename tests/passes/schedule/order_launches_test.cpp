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
    std::vector<int32_t> order = with_updates_gathered(problem, {0, 1, 2, 3, 4, 5, 6, 7, 8}, kinds, 0);
    CHECK(order == std::vector<int32_t>{0, 3, 4, 5, 7, 1, 6, 2, 8});
    CHECK(peak_bytes(problem, order) == 1008);
  }

  TEST_CASE("updates stay where gathering them would raise the peak") {
    // The update of 0 is the last reader of 2 as well: behind the sum, 2 would meet the 100 bytes of 3.
    OrderProblem problem;
    problem.buffer_bytes = {8, 4, 4, 100};
    problem.nodes = {node({}, {0, 2}, {}), node({0, 2}, {}, {0}), node({}, {3}, {}), node({3, 0}, {1}, {2})};
    const std::vector<int32_t> order = {0, 1, 2, 3};
    CHECK(with_updates_gathered(problem, order, {-1, 0, -1, 1}, 0) == order);
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
        with_updates_gathered(problem, {0, 1, 2, 3, 4, 5, 6, 7}, {-1, 0, -1, 0, -1, 1, -1, -1}, 0);
    CHECK(order == std::vector<int32_t>{0, 2, 4, 1, 3, 6, 5, 7});
  }

  TEST_CASE("updates of statistics that stand beside backward come together before it") {
    OrderProblem problem;
    problem.buffer_bytes = {8, 8, 8, 8};
    problem.pinned = {false, false, true, true};
    problem.nodes = {
        node({}, {0}, {}),       // 0: statistics
        node({}, {1}, {0}),      // 1: statistics of what follows
        node({1}, {}, {1}),      // 2: backward of 1
        node({1, 3}, {3}, {1}),  // 3: the update of 1
        node({0}, {}, {2}),      // 4: backward of 0
        node({0, 2}, {2}, {0}),  // 5: the update of 0
    };
    const std::vector<int32_t> order = with_updates_gathered(problem, {0, 1, 2, 3, 4, 5}, {-1, -1, -1, 0, -1, 0}, 0);
    CHECK(order == std::vector<int32_t>{0, 1, 2, 5, 3, 4});
  }

  // A large value 0, which lives to the fourth gradient; gradients 1 to 5, of 8 bytes each and 400 the last; a pinned
  // state for each.
  OrderProblem backward_of_five() {
    OrderProblem problem;
    problem.buffer_bytes = {1000, 8, 8, 8, 8, 400};
    problem.pinned.assign(6, false);
    problem.nodes.push_back(node({}, {0}, {}));
    for (int32_t i = 1; i <= 5; ++i) {
      const auto state = static_cast<int32_t>(problem.buffer_bytes.size());
      problem.buffer_bytes.push_back(8);
      problem.pinned.push_back(true);
      const auto gradient = static_cast<int32_t>(problem.nodes.size());
      problem.nodes.push_back(i <= 4 ? node({0}, {i}, {0}) : node({}, {i}, {}));
      problem.nodes.push_back(node({i, state}, {state}, {gradient}));
    }
    return problem;
  }

  TEST_CASE("updates of small gradients wait for each other, as long as these are few bytes and below the peak") {
    OrderProblem problem = backward_of_five();
    const std::vector<int32_t> order = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    const std::vector<int32_t> kinds = {-1, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0};
    REQUIRE(peak_bytes(problem, order) == 1008);
    // At the peak nothing waits.
    CHECK(with_updates_gathered(problem, order, kinds, 100) == order);
    // A peak before that leaves room.
    problem.nodes[0].scratch_bytes = 100;
    CHECK(with_updates_gathered(problem, order, kinds, 100) == std::vector<int32_t>{0, 1, 3, 5, 7, 2, 4, 6, 8, 9, 10});
    CHECK(with_updates_gathered(problem, order, kinds, 32) == std::vector<int32_t>{0, 1, 3, 5, 7, 2, 4, 6, 8, 9, 10});
    CHECK(with_updates_gathered(problem, order, kinds, 31) == order);  // each may be a quarter of what waits
    // Those that wait for the same place stand kind by kind.
    CHECK(with_updates_gathered(problem, order, {-1, -1, 0, -1, 1, -1, 0, -1, 1, -1, 0}, 100) ==
          std::vector<int32_t>{0, 1, 3, 5, 7, 2, 6, 4, 8, 9, 10});
    // There is room for one besides.
    problem.nodes[0].scratch_bytes = 16;
    CHECK(with_updates_gathered(problem, order, kinds, 100) == std::vector<int32_t>{0, 1, 3, 2, 4, 5, 7, 6, 8, 9, 10});
  }

  TEST_CASE("updates that share a gradient wait together") {
    OrderProblem problem = backward_of_five();
    problem.nodes[0].scratch_bytes = 100;
    problem.nodes[4].inputs[0] = 1;  // the second update reads the first gradient, too
    const std::vector<int32_t> order = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    const std::vector<int32_t> kinds = {-1, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0};
    CHECK(with_updates_gathered(problem, order, kinds, 100) == std::vector<int32_t>{0, 1, 3, 5, 7, 2, 4, 6, 8, 9, 10});
  }

  TEST_CASE("casts of parameters move ahead to the first of their kind") {
    // Parameters 0 to 2 with copies 3 to 5, which 6 to 8 are made of, one out of the other; 9 is the cast of such.
    OrderProblem problem;
    problem.buffer_bytes = {16, 16, 16, 8, 8, 8, 100, 100, 50, 50};
    problem.pinned.assign(10, false);
    for (size_t i = 0; i < 3; ++i) problem.pinned[i] = true;
    problem.nodes = {
        node({0}, {3}, {}),         // 0: cast
        node({3}, {6}, {0}),        // 1
        node({1}, {4}, {}),         // 2: cast
        node({4, 6}, {7}, {1, 2}),  // 3
        node({7}, {9}, {3}),        // 4: cast of what is computed
        node({2}, {5}, {}),         // 5: cast
        node({5, 9}, {8}, {4, 5}),  // 6
    };
    const std::vector<int32_t> order = {0, 1, 2, 3, 4, 5, 6}, kinds = {0, -1, 0, -1, 0, 0, -1};
    // The third would be there at the peak, which is op 3.
    CHECK(with_casts_gathered(problem, order, kinds, 32) == std::vector<int32_t>{0, 2, 1, 3, 4, 5, 6});
    problem.nodes[6].scratch_bytes = 500;
    CHECK(with_casts_gathered(problem, order, kinds, 32) == std::vector<int32_t>{0, 2, 5, 1, 3, 4, 6});
    CHECK(with_casts_gathered(problem, order, kinds, 31) == order);
    CHECK(with_casts_gathered(problem, order, {0, -1, 0, -1, 0, 1, -1}, 32) ==
          std::vector<int32_t>{0, 2, 5, 1, 3, 4, 6});
  }
}
