#pragma once

#include "ir/support/philox.h"
#include "kernels/dropout.h"
#include "runtime/kernels/cuda_candidate.h"
#include "runtime/kernels/kernel_call.h"

#include <array>

namespace plimsoll {

// Tensors of the nest: result 0, then the operands.
template <int operands>
LoopNest<operands + 1> broadcast_call(const KernelCall& k) {
  std::array<llvm::ArrayRef<int64_t>, operands> shapes;
  for (size_t i = 0; i < operands; ++i) shapes[i] = k.in_shape(i);
  return broadcast_nest<operands + 1>(k.out_shape(0), shapes);
}

inline bool is_tanh_form(const OpCall& call) { return call.get_string("approximate") == "tanh"; }

inline ElementDropout element_dropout(const Attrs& attrs) {
  static_assert(ElementDropout::elements_per_block == DropoutRule::elements_per_block);
  const DropoutRule rule = DropoutRule::of_elements(attrs.get_float("ratio"));
  return {rule.dropped, rule.factor(), attrs.get_int("first_draw")};
}

// What codes of a dequantize or dequantize_linear stand for.
struct CodeNumbers {
  int bits = 4;
  float factor = 1;
  std::array<float, 256> values{};  // the first 16 of 4-bit codes
};
const CodeNumbers& code_numbers(llvm::StringRef format);

// The operands of a CUDA add_n are arguments of its launch.
inline constexpr size_t max_add_n_terms = 2048;

}  // namespace plimsoll
