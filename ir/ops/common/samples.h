#pragma once

// Short names for the operands of samples: samples::normal({2, 3}).

#include "ir/op_def.h"

namespace plimsoll::samples {

using Fill = SampleOperand::Fill;
using Dims = llvm::ArrayRef<int64_t>;

inline SampleOperand filled(Fill fill, Dims shape, DType dtype) {
  SampleOperand operand;
  operand.type = Type(dtype, shape);
  operand.fill = fill;
  operand.differentiate = is_float(dtype);
  return operand;
}
inline SampleOperand normal(Dims shape, DType dtype = DType::F32) { return filled(Fill::Normal, shape, dtype); }
inline SampleOperand positive(Dims shape, DType dtype = DType::F32) { return filled(Fill::Positive, shape, dtype); }
inline SampleOperand unit(Dims shape, DType dtype = DType::F32) { return filled(Fill::Unit, shape, dtype); }
inline SampleOperand distinct(Dims shape, DType dtype = DType::F32) { return filled(Fill::Distinct, shape, dtype); }
inline SampleOperand bools(Dims shape) { return filled(Fill::Bools, shape, DType::Bool); }
inline SampleOperand integers(Dims shape, int64_t low, int64_t high, DType dtype = DType::I64) {
  SampleOperand operand = filled(Fill::Integers, shape, dtype);
  operand.low = low;
  operand.high = high;
  return operand;
}
inline SampleOperand values(Dims shape, llvm::ArrayRef<double> list, DType dtype = DType::F32) {
  SampleOperand operand = filled(Fill::Values, shape, dtype);
  operand.values.assign(list.begin(), list.end());
  return operand;
}
inline SampleOperand absent() { return filled(Fill::Absent, {}, DType::F32); }
// The same operand, left out of the comparison with finite differences.
inline SampleOperand fixed(SampleOperand operand) {
  operand.differentiate = false;
  return operand;
}

}  // namespace plimsoll::samples
