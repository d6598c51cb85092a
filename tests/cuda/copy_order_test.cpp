#include "runtime/copy_order.h"

#include <doctest/doctest.h>

// What a GPU's streams wait for, of plans written by hand: only the order of copies and computing counts.

using namespace plimsoll;

namespace {

Instruction instruction(llvm::StringRef op, int32_t done = -1) {
  Instruction made;
  made.op = op.str();
  made.done = done;
  return made;
}

using Copies = llvm::SmallVector<size_t, 2>;

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("computing waits for the last copy of a direction alone, and never twice") {
    PlanFunction function;
    function.instructions = {instruction("relu"),         instruction("to_host", 4), instruction("to_host", 4),
                             instruction("to_device", 5), instruction("relu"),       instruction("relu"),
                             instruction("to_host", 8),   instruction("relu"),       instruction("to_device", 9)};
    const CopyOrder order = order_copies(function);
    REQUIRE(order.due.size() == 10);
    CHECK(order.due[4] == Copies{2});
    CHECK(order.due[5] == Copies{3});
    CHECK(order.due[8] == Copies{6});
    CHECK(order.due[9] == Copies{8});
    for (size_t at : {0, 1, 2, 3, 6, 7}) CHECK(order.due[at].empty());
  }

  TEST_CASE("an earlier copy that is due later has been waited for with the one behind it") {
    PlanFunction function;
    function.instructions = {instruction("to_host", 4), instruction("to_host", 3), instruction("relu"),
                             instruction("relu"), instruction("relu")};
    const CopyOrder order = order_copies(function);
    CHECK(order.due[3] == Copies{1});
    CHECK(order.due[4].empty());
  }

  TEST_CASE("computing waits once for collectives of one launch") {
    PlanFunction function;
    function.instructions = {instruction("reduce_all", 6), instruction("reduce_all", 5), instruction("reduce_all", 7),
                             instruction("relu"),          instruction("relu"),          instruction("relu"),
                             instruction("relu"),          instruction("relu")};
    const CopyOrder order = order_copies(function);
    CHECK(order.due[5] == Copies{2});
    CHECK(order.due[6].empty());
    CHECK(order.due[7].empty());
  }

  TEST_CASE("copies wait for computing where something was computed or waited for since the last of their direction") {
    PlanFunction function;
    function.instructions = {instruction("relu"),       instruction("to_host", 5),   instruction("to_device", 8),
                             instruction("to_host", 8), instruction("to_device", 8), instruction("to_device", 8),
                             instruction("relu"),       instruction("to_host", 8)};
    const CopyOrder order = order_copies(function);
    CHECK(order.waits == std::vector<bool>{false, true, true, false, false, true, false, true});
  }
}
