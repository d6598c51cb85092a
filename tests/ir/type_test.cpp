#include "ir/type.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

namespace plimsoll {

TEST_SUITE_BEGIN("unit");

TEST_CASE("floats as integers lose their fraction, and stop where the integers end") {
  constexpr int64_t least = std::numeric_limits<int64_t>::min(), largest = std::numeric_limits<int64_t>::max();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const Tensor floats = Tensor::of_floats({-2.75, -2.09522e+279, 0x1p63, -infinity, std::nan("")}, DType::F64, {5});
  CHECK(floats.ints() == llvm::SmallVector<int64_t, 8>{-2, least, largest, least, 0});

  Tensor integers(Type(DType::I64, {2})), unsigned_integers(Type(DType::U64, {4}));
  integers.view().set(0, 1e30);
  integers.view().set(1, std::nan(""));
  CHECK(integers.ints() == llvm::SmallVector<int64_t, 8>{largest, 0});
  unsigned_integers.view().set(0, 1e30);
  unsigned_integers.view().set(1, 0x1p63);
  unsigned_integers.view().set(2, -1);
  unsigned_integers.view().set(3, std::nan(""));
  CHECK(unsigned_integers.ints() == llvm::SmallVector<int64_t, 8>{-1, least, -1, 0});
}

TEST_SUITE_END();

}  // namespace plimsoll
