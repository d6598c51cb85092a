#pragma once

// Batched f32 matmuls through oneDNN: y[b, r, c] = sum_k a[b, r, k] * b[b, k, c] (+ bias[c])
// (+ addend[b, r, c]), with any strides on a and b, y dense.

#include "kernels/strides.h"

#include <cstdint>
#include <memory>
#include <string>

namespace plimsoll::cpu {

class Library;

struct MatmulShape {
  LoopNest<3> batch;  // tensors: y, a, b; a stride of 0 repeats the operand
  int64_t rows, columns, depth;
  int64_t a_row_step, a_depth_step;
  int64_t b_depth_step, b_column_step;
  bool bias, addend = false;
};

class PreparedMatmul {
 public:
  // Null when oneDNN refuses; `why` then says what it said.
  static std::unique_ptr<PreparedMatmul> create(Library& library, const MatmulShape& shape, std::string& why);
  ~PreparedMatmul();

  // False when oneDNN fails. The addend may be y itself.
  [[nodiscard]] bool run(float* y, const float* a, const float* b, const float* bias, const float* addend);

 private:
  struct State;
  explicit PreparedMatmul(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace plimsoll::cpu
