#include "runtime/cuda/backend/cudnn_attention.h"

#include "ir/ops/attention/attention_sizes.h"
#include "runtime/cuda/backend/libraries.h"
#include "runtime/cuda/backend/prepared_cudnn.h"

// Attention through cuDNN. A plan's workspace was fixed when it was made; a gradient that asks for more is split along
// the batch until it fits.

namespace plimsoll {
namespace {

// Heads side by side in [batch, time, step] as cuDNN's [batch, heads, time, depth], `batch` of it at a time.
CudnnTensor attention_tensor(DType dtype, int64_t batch, int64_t time, int64_t heads, int64_t depth, int64_t step) {
  return {dtype, {batch, heads, time, depth}, {time * step, depth, step, 1}};
}

CudnnAttention attention_of(const CudaCall& k, int64_t batch, bool ordered) {
  const AttentionSizes n(k.call);
  const DType dtype = k.operands[0].type.dtype;
  return {.q = attention_tensor(dtype, batch, n.rows, n.heads, n.depth, n.q_step),
          .k = attention_tensor(dtype, batch, n.columns, n.kv_heads, n.depth, n.k_step),
          .v = attention_tensor(dtype, batch, n.columns, n.kv_heads, n.value_depth, n.v_step),
          .y = attention_tensor(dtype, batch, n.rows, n.heads, n.value_depth, n.heads * n.value_depth),
          .scale = k.attrs().get_float("scale"),
          .causal = k.attrs().get_int("causal") != 0,
          .deterministic = ordered};
}

template <auto pass, bool ordered = false>
Result<std::unique_ptr<CudaPrepared>> prepare(CudaLibraries& libraries, const CudaCall& k) {
  Result<CudnnCard> cudnn = libraries.cudnn();
  if (!cudnn) return cudnn.takeError();
  const int64_t batch = k.operands[0].type.shape[0];
  auto prepared = std::make_unique<PreparedCudnn>();
  prepared->cudnn = cudnn->handle;
  for (int64_t pieces = 1; pieces <= batch; ++pieces) {
    if (batch % pieces != 0) continue;
    CudnnPlans::Plan plan = (libraries.cudnn_plans().*pass)(*cudnn, attention_of(k, batch / pieces, ordered));
    if (!plan) return plan.takeError();
    prepared->plan = std::move(*plan);
    prepared->pieces = pieces;
    if (prepared->plan->workspace_bytes() <= k.workspace_bytes) return prepared;
  }
  return workspace_too_small(k, prepared->plan->workspace_bytes());
}

// A tensor whose first dimension is the batch, from some element on.
struct BatchPart {
  const TensorView& tensor;
  int64_t start = 0;

  const void* piece(int64_t number, int64_t pieces) const {
    return tensor.as<std::byte>() + tensor.type.bytes() / pieces * number + start * dtype_bytes(tensor.type.dtype);
  }
};

Status run_pieces(const CudaCall& k, llvm::ArrayRef<BatchPart> tensors) {
  PreparedCudnn& cudnn = prepared_cudnn(k);
  llvm::SmallVector<const void*, 9> pointers;
  for (int64_t piece = 0; piece < cudnn.pieces; ++piece) {
    pointers.clear();
    for (const BatchPart& tensor : tensors) pointers.push_back(tensor.piece(piece, cudnn.pieces));
    if (Status s = cudnn.run(k, pointers)) return s;
  }
  return Status::success();
}

}  // namespace

Status launch_cudnn_attention(const CudaCall& k) {
  const AttentionSizes n(k.call);
  return run_pieces(k, {{k.operands[0]},
                        {k.operands[n.k_operand], n.k_start},
                        {k.operands[n.v_operand], n.v_start},
                        {k.results[0]},
                        {k.results[1]}});
}

Status launch_cudnn_attention_grad(const CudaCall& k) {
  const AttentionSizes n(k.call);
  return run_pieces(k, {{k.operands[0]},
                        {k.operands[n.k_operand], n.k_start},
                        {k.operands[n.v_operand], n.v_start},
                        {k.operands[3]},
                        {k.operands[4]},
                        {k.operands[5]},
                        {k.results[0]},
                        {k.results[n.k_operand], n.k_start},
                        {k.results[n.v_operand], n.v_start}});
}

Result<std::unique_ptr<CudaPrepared>> prepare_cudnn_attention(CudaLibraries& libraries, const CudaCall& k) {
  return prepare<&CudnnPlans::attention>(libraries, k);
}
Result<std::unique_ptr<CudaPrepared>> prepare_cudnn_attention_grad(CudaLibraries& libraries, const CudaCall& k) {
  return prepare<&CudnnPlans::attention_grad>(libraries, k);
}
Result<std::unique_ptr<CudaPrepared>> prepare_cudnn_attention_grad_ordered(CudaLibraries& libraries,
                                                                           const CudaCall& k) {
  return prepare<&CudnnPlans::attention_grad, true>(libraries, k);
}

}  // namespace plimsoll
