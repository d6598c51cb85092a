#pragma once

// Fills the operands of op samples. An operand of a sample always gets the same numbers.

#include "ir/op_def.h"
#include "ir/support/philox.h"

#include <algorithm>
#include <numeric>

namespace plimsoll {

// Returns 0 .. count-1 in an order that depends only on the stream.
inline std::vector<int64_t> shuffled(int64_t count, const RandomStream& stream) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = count - 1; i > 0; --i) {
    auto j = static_cast<int64_t>(stream.uniform(i) * static_cast<double>(i + 1));
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(j)]);
  }
  return order;
}

inline double sample_number(const SampleOperand& sample, int64_t i, const RandomStream& stream) {
  using Fill = SampleOperand::Fill;
  double u = stream.uniform(i);
  switch (sample.fill) {
    case Fill::Normal: return stream.normal(i);
    case Fill::Positive: return 0.5 + u;
    case Fill::Unit: return -0.9 + 1.8 * u;
    case Fill::Integers:
      return static_cast<double>(sample.low) + std::floor(u * static_cast<double>(sample.high - sample.low + 1));
    case Fill::Bools: return u < 0.5;
    case Fill::Values: return sample.values[static_cast<size_t>(i)];
    case Fill::Distinct:
    case Fill::Absent: break;
  }
  return 0;
}

// Returns the operand's numbers as `type`, whose dtype may differ from the sample's.
inline Tensor sample_tensor(const SampleOperand& sample, const Type& type, uint32_t seed, uint32_t operand) {
  Tensor tensor(type);
  RandomStream stream{seed, operand, 0};
  int64_t count = type.elements();
  if (sample.fill == SampleOperand::Fill::Distinct) {
    // Numbers lie on a grid in steps of 0.3, whose points nearest to 0 are -0.15 and 0.15.
    std::vector<int64_t> order = shuffled(count, stream);
    for (int64_t i = 0; i < count; ++i)
      tensor.view().set(i, 0.3 * (static_cast<double>(order[static_cast<size_t>(i)] - count / 2) + 0.5));
    return tensor;
  }
  for (int64_t i = 0; i < count; ++i) tensor.view().set(i, sample_number(sample, i, stream));
  return tensor;
}

}  // namespace plimsoll
