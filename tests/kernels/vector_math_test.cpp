#include "kernels/cpu/elementwise/unary.h"
#include "tests/kernels/kernel_run.h"

#include <bit>
#include <cmath>
#include <limits>

// The vectorised elementary functions against the C library in double, over the whole range of floats.

using namespace plimsoll;

namespace {

double ulp(double value) {
  const auto magnitude = static_cast<float>(std::fabs(value));
  const float next = std::nextafter(magnitude, std::numeric_limits<float>::infinity());
  return std::max(static_cast<double>(next) - magnitude, 0x1p-149);
}

// The largest error in units in the last place of the exact value.
double worst_error(cpu::UnaryRange* range, double (*exact)(double), float low, float high) {
  std::vector<float> x, y;
  // Every 997th float between the bounds, of either sign.
  for (uint32_t bits = 0; bits < 0x7f800000; bits += 997)
    for (float value : {std::bit_cast<float>(bits), -std::bit_cast<float>(bits)})
      if (value >= low && value <= high) x.push_back(value);
  y.resize(x.size());
  range(y.data(), x.data(), static_cast<int64_t>(x.size()), 1, 1);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double wanted = exact(x[i]);
    worst = std::max(worst, std::fabs(y[i] - wanted) / ulp(wanted));
  }
  return worst;
}

double at(cpu::UnaryRange* range, float x) {
  float y;
  range(&y, &x, 1, 1, 1);
  return y;
}

constexpr float infinite = std::numeric_limits<float>::infinity(),
                not_a_number = std::numeric_limits<float>::quiet_NaN();

}  // namespace

TEST_SUITE("ops") {
  TEST_CASE("vectorised functions are within a few units in the last place") {
    CHECK(worst_error(cpu::exp_range, std::exp, -87, 88.7f) < 2);
    CHECK(worst_error(cpu::exp_range, std::exp, -103, -87) < 2);
    CHECK(worst_error(cpu::log_range, std::log, 0x1p-149f, 3e38f) < 2);
    CHECK(worst_error(cpu::tanh_range, std::tanh, -50, 50) < 3);
    CHECK(worst_error(cpu::erf_range, std::erf, -10, 10) < 3);
    CHECK(worst_error(
              cpu::sigmoid_range, [](double x) { return 1 / (1 + std::exp(-x)); }, -80, 80) < 4);
    CHECK(worst_error(
              cpu::softplus_range, [](double x) { return std::log1p(std::exp(x)); }, -80, 80) < 4);
    CHECK(worst_error(
              cpu::elu_range, [](double x) { return x > 0 ? x : std::expm1(x); }, -80, 80) < 4);
  }

  TEST_CASE("vectorised functions keep the limits") {
    CHECK(at(cpu::exp_range, infinite) == infinite);
    CHECK(at(cpu::exp_range, -infinite) == 0);
    CHECK(at(cpu::exp_range, 100) == infinite);
    CHECK(at(cpu::log_range, 0) == -infinite);
    CHECK(at(cpu::log_range, infinite) == infinite);
    CHECK(std::isnan(at(cpu::log_range, -1)));
    CHECK(at(cpu::tanh_range, infinite) == 1);
    CHECK(at(cpu::tanh_range, -infinite) == -1);
    CHECK(at(cpu::erf_range, -infinite) == -1);
    CHECK(at(cpu::sigmoid_range, -infinite) == 0);
    CHECK(at(cpu::sigmoid_range, infinite) == 1);
    for (cpu::UnaryRange* range : {cpu::exp_range, cpu::log_range, cpu::tanh_range, cpu::erf_range, cpu::sigmoid_range,
                                   cpu::relu_range, cpu::gelu_range})
      CHECK(std::isnan(at(range, not_a_number)));
  }
}
