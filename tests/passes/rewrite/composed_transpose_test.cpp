#include "passes/rewrite/composed_transpose.h"

#include <doctest/doctest.h>

// The tracker on random chains: the one transpose must put every element where the chain puts it.

#include <algorithm>
#include <numeric>
#include <random>

using namespace plimsoll;

namespace {

using Elements = std::vector<int64_t>;

Elements transposed(const Elements& x, const Shape& shape, llvm::ArrayRef<int64_t> permutation) {
  Shape strides = row_major_strides(shape), index(shape.size(), 0);
  Elements y;
  for (size_t count = 0; count < x.size(); ++count) {
    int64_t from = 0;
    for (size_t d = 0; d < index.size(); ++d) from += index[d] * strides[static_cast<size_t>(permutation[d])];
    y.push_back(x[static_cast<size_t>(from)]);
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < shape[static_cast<size_t>(permutation[d])]) break;
      index[d] = 0;
    }
  }
  return y;
}

// 64 elements in dims of powers of two, some of them 1: any reshape cuts these evenly.
Shape random_shape(std::mt19937& random) {
  Shape shape = {2};
  for (int twos = 1; twos < 6; ++twos) {
    if (random() % 2 == 0)
      shape.push_back(2);
    else
      shape.back() *= 2;
    if (random() % 5 == 0) shape.push_back(1);
  }
  std::shuffle(shape.begin(), shape.end(), random);
  return shape;
}

llvm::SmallVector<int64_t, 6> random_permutation(size_t rank, std::mt19937& random) {
  llvm::SmallVector<int64_t, 6> permutation(rank);
  std::iota(permutation.begin(), permutation.end(), 0);
  std::shuffle(permutation.begin(), permutation.end(), random);
  return permutation;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("dim tracker: one transpose does what a random chain does") {
    std::mt19937 random(7);
    int stood_still = 0;
    for (int round = 0; round < 2000; ++round) {
      const Shape source = random_shape(random);
      Elements start(64);
      std::iota(start.begin(), start.end(), 0);
      Elements elements = start;
      TransposeComposer tracker(source);
      Shape shape = source;
      for (int step = 0; step < 3; ++step) {
        auto permutation = random_permutation(shape.size(), random);
        elements = transposed(elements, shape, permutation);
        tracker.transpose(permutation);
        shape = random_shape(random);
        REQUIRE(tracker.reshape(shape));
      }
      ComposedTranspose one = tracker.result();
      REQUIRE(element_count(one.split) == 64);
      CHECK(transposed(start, one.split, one.permutation) == elements);
      CHECK(one.keeps_order() == (elements == start));
      stood_still += one.keeps_order();
    }
    CHECK(stood_still > 0);
  }

  TEST_CASE("dim tracker: a dim that does not divide is no chain of whole dims") {
    TransposeComposer tracker({2, 3});
    tracker.transpose({1, 0});
    CHECK_FALSE(tracker.reshape({2, 3}));
  }

  TEST_CASE("dim tracker: parts that stay neighbours are not cut") {
    TransposeComposer tracker({2, 12, 1});
    REQUIRE(tracker.reshape({2, 3, 4}));
    tracker.transpose({1, 2, 0});
    ComposedTranspose one = tracker.result();
    CHECK(one.split == Shape{2, 12, 1});
    CHECK(one.permutation == llvm::SmallVector<int64_t, 6>{2, 1, 0});
  }
}
