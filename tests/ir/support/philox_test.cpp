// Tests the random generator: published answers, moments, and equal numbers from reference and CPU kernels.

#include "ir/support/philox.h"
#include "kernels/cpu/common/philox.h"

#include "doctest/doctest.h"

#include <vector>

using namespace plimsoll;

TEST_SUITE("ops") {
  // The known-answer table that comes with Salmon et al. 2011.
  TEST_CASE("philox gives its published answers") {
    CHECK(philox({0, 0, 0, 0}, 0, 0) == PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    CHECK(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffff, 0xffffffff) ==
          PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0) ==
          PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  }

  TEST_CASE("the kernels draw the reference's words") {
    const RandomStream reference{0x123456789abcdef, 41, 7};
    const cpu::RandomStream kernel{0x123456789abcdef, 41, 7};
    const int64_t first = 5, count = 301;
    std::vector<uint32_t> words(count);
    cpu::random_words(kernel, first, count, words.data());
    for (int64_t i = 0; i < count; ++i) {
      CAPTURE(i);
      CHECK(words[i] == reference.block((first + i) / 4)[(first + i) % 4]);
    }
  }

  TEST_CASE("the kernels draw the reference's 16-bit halves, from any place on") {
    for (int64_t first : {0, 4, 5, 251}) {
      const RandomStream reference{0x123456789abcdef, 41, 7, 12};
      const cpu::RandomStream kernel{0x123456789abcdef, 41, 7, 3};
      std::vector<uint16_t> halves(700);
      cpu::random_halves(kernel, first, 700, halves.data());
      for (int64_t i = 0; i < 700; ++i) CHECK(halves[i] * 0x1p-16 == reference.uniform_16(first + i));
    }
  }

  TEST_CASE("normal numbers by blocks are those one by one") {
    const RandomStream stream{5, 6, 7, 8};
    for (int64_t i = 0; i < 400; ++i) CHECK(stream.normals(i / 4)[static_cast<size_t>(i % 4)] == stream.normal(i));
  }

  // With n = 40000 draws the standard error of the mean is 1 / sqrt(n) = 0.005, of the variance sqrt(2 / n) = 0.007.
  TEST_CASE("normal numbers have mean 0 and variance 1") {
    const RandomStream stream{1, 2, 3};
    const int64_t count = 40000;
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < count; ++i) {
      double x = stream.normal(i);
      sum += x;
      squares += x * x;
    }
    CHECK(std::abs(sum / count) < 0.02);
    CHECK(std::abs(squares / count - 1) < 0.03);
  }
}
