#include "runtime/cpu/transpose.h"

#include <doctest/doctest.h>

namespace plimsoll {
namespace {

TEST_SUITE("unit") {
  // Whole and cut tiles of 64, and columns that lie in one set of the cache or do not.
  TEST_CASE("transpose: elements of any size") {
    for (DType dtype : {DType::U8, DType::I16, DType::F32, DType::I64})
      for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{192, 256}, {130, 512}, {64, 70}, {3, 9}}) {
        Tensor from(Type(dtype, {rows, columns})), to(Type(dtype, {columns, rows}));
        for (int64_t i = 0; i < rows * columns; ++i) from.view().set(i, static_cast<double>((i * 40503 >> 3) % 251));
        transpose(to.view(), from.view());
        int64_t different = 0;
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t c = 0; c < columns; ++c) different += to.get(c * rows + r) != from.get(r * columns + c);
        CHECK(different == 0);
      }
  }
}

}  // namespace
}  // namespace plimsoll
