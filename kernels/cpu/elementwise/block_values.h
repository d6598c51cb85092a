#pragma once

// One thread's blocks of all values of a program.

#include "kernels/cpu/elementwise/blocks.h"

#include <cstddef>

namespace plimsoll::cpu {

inline constexpr int64_t block_elements = 1024;

class Blocks {
 public:
  Blocks(const BlockProgram& program, int64_t first_draw, const void* const* operands, void* const* results)
      : program_(program), first_draw_(first_draw), operands_(operands), results_(results) {}

  // Elements `at` to `at + n`, block_elements at most.
  void load_all(int64_t at, int64_t n);
  void run(const BlockStep& step, int64_t at, int64_t n);
  void store(size_t result, int64_t at, int64_t n);

  const float* floats(int value) const { return static_cast<const float*>(values_[value]); }
  // Room for a float value that no step makes.
  float* set_floats(int value);
  // A value's first element becomes all of them.
  void repeat_first(int value, Scalar type);

 private:
  static constexpr int64_t buffer_bytes = block_elements * static_cast<int64_t>(sizeof(int64_t));

  std::byte* buffer(int value) { return memory_ + program_.buffers[static_cast<size_t>(value)] * buffer_bytes; }
  void load(size_t i, int64_t at, int64_t n);
  bool is_dense_at(const BlockOperand& operand) const;
  void gather(const BlockOperand& operand, const std::byte* from, std::byte* to, int64_t at, int64_t n);
  void drop(const BlockStep& step, float* y, const float* x, int64_t at, int64_t n);
  void fill_constant(const BlockStep& step, std::byte* y, int64_t n);

  const BlockProgram& program_;
  int64_t first_draw_;
  const void* const* operands_;
  void* const* results_;
  const void* values_[128] = {};
  alignas(64) std::byte memory_[max_block_buffers * buffer_bytes];
};

// How a block holds elements of a type.
constexpr Scalar inside_block(Scalar type) { return type == Scalar::BF16 || type == Scalar::F16 ? Scalar::F32 : type; }

}  // namespace plimsoll::cpu
