#include "runtime/cuda/byte_arena.h"

#include <doctest/doctest.h>

using plimsoll::ByteArena;

TEST_SUITE("unit") {
  TEST_CASE("byte arena: parts do not overlap, and what is freed grows together") {
    constexpr int64_t unit = ByteArena::alignment;
    ByteArena arena(4 * unit);
    CHECK(arena.take(1) == 0);
    CHECK(arena.take(unit) == unit);
    CHECK(arena.take(unit + 1) == 2 * unit);
    CHECK_FALSE(arena.take(1));
    arena.give_back(unit);
    CHECK_FALSE(arena.take(2 * unit));
    arena.give_back(0);
    CHECK(arena.take(2 * unit) == 0);
    arena.give_back(2 * unit);
    arena.give_back(0);
    CHECK(arena.is_empty());
    CHECK(arena.take(4 * unit) == 0);
    CHECK_FALSE(arena.take(0));
  }
}
