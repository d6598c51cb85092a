#pragma once

// Several elementwise functions in one pass over memory. Elements go through in blocks that stay in the first caches:
// a block of every operand is read, each function runs on whole blocks, and a block of every result is written.
// 16-bit floats are f32 inside a block and rounded to their type behind every function that gives them.

#include "kernels/dropout.h"
#include "kernels/scalar.h"

#include <cstdint>
#include <vector>

namespace plimsoll::cpu {

// y and x are blocks of n elements; a and b are the function's parameters.
using RangeFn = void(void* y, const void* const* x, int64_t n, float a, float b);

struct BlockStep {
  // A reduction stands among the steps for its place alone; BlockReductions has it.
  enum class Kind : uint8_t { Range, Cast, Dropout, Constant, Reduction } kind = Kind::Range;
  RangeFn* range = nullptr;
  float a = 0, b = 0;
  std::vector<int> operands;  // values
  int result = 0;
  Scalar type = Scalar::F32;       // of the result
  Scalar from_type = Scalar::F32;  // of a cast's operand
  ElementDropout dropout;          // of a dropout, whose second operand is an operand of the program
  uint32_t id = 0;
  float number = 0;     // of a constant float, and
  int64_t integer = 0;  // of any other constant
};

// A tensor that is read. Values 0, 1, ... of a program are its operands.
struct BlockOperand {
  Scalar type;
  std::vector<int64_t> strides;  // by dimension of the iteration; 0 repeats. Empty: it is read whole by dropout
};

// Elements of a pass that are combined to totals, which are values too.
struct BlockReduction {
  enum class Kind : uint8_t { Sum, Mean, Max } kind = Kind::Sum;
  int operand = 0, result = 0;  // values
  int pass = 0;
  Scalar type = Scalar::F32;  // of the result
};

// What a program with reductions goes over: elements [outer, length, inner], whose middle is reduced. Each pass
// computes elements anew; those behind the first read totals of their row, and inner is 1.
struct BlockReductions {
  int64_t outer = 1, length = 1, inner = 1;
  std::vector<BlockReduction> each;
  struct Pass {
    std::vector<int> element_steps, total_steps;  // total steps follow the reductions of the pass
  };
  std::vector<Pass> passes;
  std::vector<bool> result_is_total;

  // Pieces of `length` that are tasks of their own; a formula of the shape, so that sums are always the same.
  int64_t parts() const;
  int64_t workspace_bytes() const;
};

struct BlockProgram {
  std::vector<int64_t> sizes;  // of the iteration, dense in every result
  std::vector<BlockOperand> operands;
  std::vector<BlockStep> steps;      // without reductions, all of them in this order
  BlockReductions reductions;        // none: elements alone
  std::vector<int> results;          // values
  std::vector<Scalar> result_types;  // by result
  std::vector<int> buffers;          // by value: which buffer its block is in
  int buffer_count = 0;
};

inline constexpr int max_block_buffers = 40;

// Results may be operands that are read at the place of every result's element.
void run_blocks(const BlockProgram& program, int64_t first_draw, const void* const* operands, void* const* results);

// The same for a program with reductions. The workspace is of its workspace_bytes().
void run_reducing_blocks(const BlockProgram& program, int64_t first_draw, const void* const* operands,
                         void* const* results, void* workspace);

}  // namespace plimsoll::cpu
