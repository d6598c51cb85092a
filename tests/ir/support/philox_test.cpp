// Tests the random generator: published answers, moments, the shares that attention's dropout keeps, and equal numbers
// from reference and CPU kernels.

#include "ir/support/philox.h"
#include "kernels/cpu/common/philox.h"
#include "runtime/kernels/attention.h"
#include "runtime/kernels/elementwise.h"

#include "doctest/doctest.h"

#include <cmath>
#include <tuple>
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

  // 0.1 is 26 of 256. Of 0.3 % 8 bits would make 0.39 %, of 99.7 % as much more; 16 bits 197 of 65536.
  TEST_CASE("attention's dropout rounds its ratio to 8 bits where these are within 2 %, else to 16") {
    for (auto [ratio, bits, dropped] :
         {std::tuple(0.1, 8, 26), std::tuple(0.5, 8, 128), std::tuple(0.003, 16, 197), std::tuple(0.997, 16, 65339),
          std::tuple(1e-9, 16, 1), std::tuple(1.0, 8, 256)}) {
      CAPTURE(ratio);
      const DropoutRule rule = DropoutRule::of_probabilities(ratio);
      CHECK(rule.bits == bits);
      CHECK(rule.dropped == static_cast<uint32_t>(dropped));
      CHECK(rule.factor() == (ratio == 1 ? 0 : 1 / (1 - dropped / std::ldexp(1.0, bits))));
    }
  }

  // The standard error of a share p of 100000 is sqrt(p * (1 - p) / 100000), at most 0.0016.
  TEST_CASE("attention's dropout keeps its share, and the kernels keep what the reference does") {
    for (double ratio : {0.1, 0.5, 0.003, 0.9}) {
      CAPTURE(ratio);
      const DropoutRule rule = DropoutRule::of_probabilities(ratio);
      const RandomStream reference{0x123456789abcdef, 41, 7, 96};
      const cpu::RandomStream kernel{0x123456789abcdef, 41, 7, 96 / 32 * rule.blocks()};
      const int64_t first = 5, count = 100000 / 32;
      std::vector<uint32_t> words(count);
      cpu::kept_words(kernel, attention_dropout({{"dropout", ratio}}), first, count, words.data());
      int64_t kept = 0, unequal = 0;
      for (int64_t i = 0; i < 32 * count; ++i) {
        const bool keeps = reference.keeps_probability(rule, 32 * first + i);
        kept += keeps;
        unequal += keeps != (words[static_cast<size_t>(i / 32)] >> i % 32 & 1);
      }
      CHECK(unequal == 0);
      CHECK(std::abs(static_cast<double>(kept) / (32.0 * count) - rule.kept_share()) < 0.006);
    }
  }

  TEST_CASE(
      "dropout of elements rounds its ratio to 16 bits and keeps its share, and the kernels what the reference does") {
    for (auto [ratio, dropped] : {std::tuple(0.0, 0), std::tuple(1e-9, 1), std::tuple(0.1, 6554),
                                  std::tuple(0.5, 32768), std::tuple(0.9999999, 65535), std::tuple(1.0, 65536)}) {
      CAPTURE(ratio);
      const DropoutRule rule = DropoutRule::of_elements(ratio);
      CHECK(rule.dropped == static_cast<uint32_t>(dropped));
      CHECK(rule.factor() == (ratio == 1 ? 0 : 1 / (1 - dropped * 0x1p-16)));
      const RandomStream reference{0x123456789abcdef, 41, 7, 12};
      const cpu::RandomStream kernel{0x123456789abcdef, 41, 7};
      const int64_t count = 100003;
      std::vector<float> x(count, 3.0f), y(count);
      cpu::dropout(kernel, element_dropout({{"ratio", ratio}, {"first_draw", 12}}), y.data(), x.data(), count);
      int64_t kept = 0, unequal = 0;
      for (int64_t i = 0; i < count; ++i) {
        const bool keeps = reference.keeps(rule, i);
        kept += keeps;
        unequal += y[static_cast<size_t>(i)] != (keeps ? 3.0f * static_cast<float>(rule.factor()) : 0);
      }
      CHECK(unequal == 0);
      CHECK(std::abs(static_cast<double>(kept) / static_cast<double>(count) - rule.kept_share()) < 0.006);
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
