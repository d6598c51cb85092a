#pragma once

#include "ir/ops/common/spatial.h"
#include "ir/support/align.h"
#include "kernels/cuda/common/partials.h"
#include "kernels/cuda/matmul/column_product_sizes.h"
#include "runtime/kernels/cuda_candidate.h"
#include "runtime/kernels/kernel_call.h"

namespace plimsoll {

// Which of x, w and y a convolution makes of the other two. conv_transpose is the input gradient used forward.
enum class ConvPass : uint8_t { Forward, InputGradient, WeightGradient };

// x, w and y of a call: its operands 0 and 1 and its result 0, in the order of the pass.
template <typename T>
struct ConvRoles {
  const T &x, &w, &y;
  ConvRoles(ConvPass pass, const T& first, const T& second, const T& result)
      : x(pass == ConvPass::InputGradient ? result : first),
        w(pass == ConvPass::WeightGradient ? result : second),
        y(pass == ConvPass::Forward ? result : (pass == ConvPass::InputGradient ? first : second)) {}
};

struct ConvTypes : ConvRoles<Type> {
  ConvTypes(ConvPass pass, const OpCall& call, llvm::ArrayRef<Type> results)
      : ConvRoles(pass, call.operand(0), call.operand(1), results[0]) {}
  ConvTypes(ConvPass pass, const KernelCall& k)
      : ConvRoles(pass, k.operands[0].type, k.operands[1].type, k.results[0].type) {}
};

struct ConvTensors : ConvRoles<TensorView> {
  ConvTensors(ConvPass pass, const KernelCall& k) : ConvRoles(pass, k.operands[0], k.operands[1], k.results[0]) {}
};

// w [out, in / groups, kernel...], or [out, kernel..., in / groups] with channels last.
inline SlidingWindow window_of(const Attrs& attrs, llvm::ArrayRef<int64_t> w) {
  return llvm::cantFail(read_window(attrs, w.slice(attrs.get_int("channels_last") ? 1 : 2, w.size() - 2)));
}

cuda::ChannelShape channels_of_result(const OpCall& call, const Type& y);
// What passes over an image leave in the workspace, at its start: for moments, and for the sums of a norm's gradient.
inline int64_t gradient_sums_workspace_bytes(const cuda::ChannelShape& shape, DType dtype) {
  return align_to_tensor(cuda::batch_norm_grad_workspace(shape, dtype_bytes(dtype)) *
                         static_cast<int64_t>(sizeof(float)));
}
inline int64_t moments_workspace_bytes(const cuda::ChannelShape& shape, DType dtype) {
  return align_to_tensor(cuda::batch_norm_workspace(shape, dtype_bytes(dtype)) * static_cast<int64_t>(sizeof(float)));
}
// A conv_moments as a product of matrices; none where its kernel does not take it.
std::optional<cuda::ColumnSizes> moments_sizes(const OpCall& call, llvm::ArrayRef<Type> results);

// A conv_dx_sums as a product, and how many tensors its sums read beside it; none where its kernel does not take it.
struct GradientSumsSizes {
  cuda::ColumnSizes product;
  int64_t beside;
};
std::optional<GradientSumsSizes> gradient_sums_sizes(const OpCall& call, llvm::ArrayRef<Type> results);

// The weight gradient of 16-bit operands may be asked for in f32: it is made in 16 bits and widened.
inline bool is_widened(const OpCall& call, const Type& result) {
  return result.dtype == DType::F32 && is_16_bit_float(call.operand(0).dtype);
}

}  // namespace plimsoll
