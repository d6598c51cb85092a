#include "ir/attention_sizes.h"
#include "kernels/cuda/channel_bias.h"
#include "kernels/cuda/channel_pad.h"
#include "kernels/cuda/elementwise.h"
#include "runtime/cuda/backend/cudnn_plan.h"
#include "runtime/cuda/backend/device_memory.h"
#include "runtime/cuda/backend/launcher.h"
#include "runtime/cuda/backend/libraries.h"
#include "runtime/cuda/padded_channels.h"

#include "ir/units.h"

#include <cudnn_graph.h>

// Convolution and attention through cuDNN. A plan's workspace was fixed when it was made; attention's gradient that asks
// for more is split along the batch until it fits.

namespace plimsoll {
namespace {

struct PreparedCudnn : CudaPrepared {
  cudnnContext* cudnn = nullptr;
  std::unique_ptr<CudnnPlan> plan;
  int64_t pieces = 1;      // equal parts of the batch, one run each
  int64_t own_bytes = 0;   // at the start of the workspace, beside what the plan takes

  int64_t workspace_bytes() const override { return plan->workspace_bytes() + own_bytes; }

  Status run(const CudaCall& k, llvm::ArrayRef<const void*> tensors) {
    if (cudnnSetStream(cudnn, k.stream) != CUDNN_STATUS_SUCCESS) return system_error("cuDNN: stream refused");
    return plan->run(cudnn, tensors, static_cast<std::byte*>(k.workspace) + own_bytes);
  }
};

Status too_large(const CudaCall& k, int64_t asked) {
  return system_error("cuDNN asks for " + format_bytes(asked) + " of workspace for " + k.op.name + ", the plan gives it " +
                      format_bytes(k.workspace_bytes));
}

// ---- convolution ----

// A weight gradient in f32 of 16-bit operands is first made in 16 bits, at the start of the workspace.
int64_t narrow_bytes(const CudaCall& k) {
  const Type& dw = k.results[0].type;
  return is_16_bit_float(k.operands[0].type.dtype) && dw.dtype == DType::F32 ? (dw.bytes() / 2 + 255) / 256 * 256 : 0;
}

// Sizes in cuDNN's order [batch, channels, space...] of a tensor stored so, or with its channels last.
CudnnTensor convolution_tensor(const Type& type, bool channels_last) {
  CudnnTensor tensor{type.dtype, {}, {}};
  const Shape dense = row_major_strides(type.shape);
  auto push = [&](size_t d) {
    tensor.sizes.push_back(type.shape[d]);
    tensor.strides.push_back(dense[d]);
  };
  const size_t rank = type.shape.size();
  push(0);
  if (channels_last) push(rank - 1);
  for (size_t d = 1; d < rank - (channels_last ? 1 : 0); ++d) push(d);
  // cuDNN knows no convolution of one dimension: a line is an image one pixel high.
  if (rank == 3) {
    tensor.sizes.insert(tensor.sizes.begin() + 2, 1);
    tensor.strides.insert(tensor.strides.begin() + 2, tensor.strides[2] * tensor.sizes[3]);
  }
  return tensor;
}

llvm::SmallVector<int64_t, 3> per_dimension(llvm::ArrayRef<int64_t> given, int64_t otherwise, size_t rank, size_t from = 0) {
  llvm::SmallVector<int64_t, 3> values;
  if (rank == 1) values.push_back(otherwise);
  for (size_t d = 0; d < rank; ++d) values.push_back(given.empty() ? otherwise : given[from + d]);
  return values;
}

Result<std::unique_ptr<CudaPrepared>> prepare_convolution(CudaLibraries& libraries, const CudaCall& k, CudnnConvolution::Pass pass,
                                                          const Type& x, const Type& w, const Type& y, int64_t own_bytes) {
  Result<CudnnCard> cudnn = libraries.cudnn();
  if (!cudnn) return cudnn.takeError();
  const Attrs& attrs = k.call.attrs;
  const bool channels_last = attrs.get_int("channels_last");
  const size_t rank = x.shape.size() - 2;
  CudnnConvolution c{.pass = pass,
                     .x = convolution_tensor(x, channels_last),
                     .w = convolution_tensor(w, channels_last),
                     .y = convolution_tensor(y, channels_last),
                     .pads_begin = per_dimension(attrs.get_ints("pads"), 0, rank),
                     .pads_end = per_dimension(attrs.get_ints("pads"), 0, rank, rank),
                     .strides = per_dimension(attrs.get_ints("strides"), 1, rank),
                     .dilations = per_dimension(attrs.get_ints("dilations"), 1, rank),
                     .tensor_cores = libraries.tf32()};
  const int64_t workspace_bytes = k.workspace_bytes - own_bytes;
  Result<std::unique_ptr<CudnnPlan>> plan = plan_convolution(*cudnn, c, workspace_bytes);
  if (!plan) return plan.takeError();
  if ((*plan)->workspace_bytes() > workspace_bytes) return too_large(k, (*plan)->workspace_bytes());
  auto prepared = std::make_unique<PreparedCudnn>();
  prepared->cudnn = cudnn->handle;
  prepared->plan = std::move(*plan);
  prepared->own_bytes = own_bytes;
  return prepared;
}

using Pass = CudnnConvolution::Pass;

Result<std::unique_ptr<CudaPrepared>> prepare_conv(CudaLibraries& libraries, const CudaCall& k) {
  return prepare_convolution(libraries, k, Pass::Forward, k.operands[0].type, k.operands[1].type, k.results[0].type, 0);
}
// Of dy and w, as conv_transpose is of x and w.
Result<std::unique_ptr<CudaPrepared>> prepare_conv_dx(CudaLibraries& libraries, const CudaCall& k) {
  return prepare_convolution(libraries, k, Pass::InputGradient, k.results[0].type, k.operands[1].type, k.operands[0].type, 0);
}
// dw as cuDNN makes it.
Type narrow_gradient(const CudaCall& k) { return {k.operands[0].type.dtype, k.results[0].type.shape}; }

Result<std::unique_ptr<CudaPrepared>> prepare_conv_dw(CudaLibraries& libraries, const CudaCall& k) {
  return prepare_convolution(libraries, k, Pass::WeightGradient, k.operands[0].type, narrow_gradient(k), k.operands[1].type, narrow_bytes(k));
}

// With the channels of x and w padded, both at the start of the workspace.
int64_t padded_bytes(const CudaCall& k, const Type& w) { return padded_channel_bytes(k.operands[0].type) + padded_channel_bytes(w); }

Result<std::unique_ptr<CudaPrepared>> prepare_padded_conv(CudaLibraries& libraries, const CudaCall& k) {
  const Type &x = k.operands[0].type, &w = k.operands[1].type;
  return prepare_convolution(libraries, k, Pass::Forward, with_padded_channels(x), with_padded_channels(w), k.results[0].type, padded_bytes(k, w));
}
Result<std::unique_ptr<CudaPrepared>> prepare_padded_conv_dw(CudaLibraries& libraries, const CudaCall& k) {
  const Type &x = k.operands[0].type, dw = narrow_gradient(k);
  return prepare_convolution(libraries, k, Pass::WeightGradient, with_padded_channels(x), with_padded_channels(dw), k.operands[1].type, padded_bytes(k, dw));
}

PreparedCudnn& prepared(const CudaCall& k) { return static_cast<PreparedCudnn&>(*k.prepared); }

Status add_bias(const CudaCall& k) {
  if (!k.has(2)) return Status::success();
  llvm::ArrayRef<int64_t> y = k.results[0].type.shape;
  const bool channels_last = k.call.attrs.get_int("channels_last");
  const int64_t channels = channels_last ? y.back() : y[1];
  const int64_t inner = channels_last ? 1 : element_count(y.drop_front(2));
  cuda::add_channel_bias(k.stream, k.out_scalar(0), k.out(0), k.in(2), k.results[0].type.elements(), channels, inner);
  return Status::success();
}

Status launch_conv(const CudaCall& k) {
  if (Status s = prepared(k).run(k, {k.in(0), k.in(1), k.out(0)})) return s;
  return add_bias(k);
}
Status launch_conv_dx(const CudaCall& k) {
  if (Status s = prepared(k).run(k, {k.out(0), k.in(1), k.in(0)})) return s;
  return add_bias(k);
}
Status launch_conv_dw(const CudaCall& k) {
  const int64_t narrow = narrow_bytes(k);
  if (narrow == 0) return prepared(k).run(k, {k.in(0), k.out(0), k.in(1)});
  const void* dw = k.workspace;
  if (Status s = prepared(k).run(k, {k.in(0), dw, k.in(1)})) return s;
  return cuda_status(cuda::cast_elements(cuda::Scalar::F32, k.out(0), k.in_scalar(0), dw, k.results[0].type.elements(), k.stream), "conv_dw");
}

cudaError_t pad_channels(void* padded, const TensorView& tensor, cudaStream_t stream) {
  const int64_t channels = tensor.type.shape.back(), rows = tensor.type.elements() / channels;
  return cuda::pad_channels(padded, tensor.data, rows, channels, with_padded_channels(tensor.type).shape.back(), stream);
}

Status launch_padded_conv(const CudaCall& k) {
  std::byte* x = static_cast<std::byte*>(k.workspace);
  std::byte* w = x + padded_channel_bytes(k.operands[0].type);
  if (Status s = cuda_status(pad_channels(x, k.operands[0], k.stream), "conv")) return s;
  if (Status s = cuda_status(pad_channels(w, k.operands[1], k.stream), "conv")) return s;
  if (Status s = prepared(k).run(k, {x, w, k.out(0)})) return s;
  return add_bias(k);
}
Status launch_padded_conv_dw(const CudaCall& k) {
  std::byte* x = static_cast<std::byte*>(k.workspace);
  std::byte* dw = x + padded_channel_bytes(k.operands[0].type);
  if (Status s = cuda_status(pad_channels(x, k.operands[0], k.stream), "conv_dw")) return s;
  if (Status s = prepared(k).run(k, {x, dw, k.in(1)})) return s;
  const Type& wanted = k.results[0].type;
  const int64_t channels = wanted.shape.back();
  return cuda_status(cuda::drop_channels(k.out_scalar(0), k.out(0), k.in_scalar(0), dw, wanted.elements() / channels, channels,
                                         with_padded_channels(wanted).shape.back(), k.stream),
                     "conv_dw");
}

// ---- attention ----

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
          .scale = k.call.attrs.get_float("scale"),
          .causal = k.call.attrs.get_int("causal") != 0,
          .deterministic = ordered};
}

template <auto plan_attention_pass, bool ordered = false>
Result<std::unique_ptr<CudaPrepared>> prepare_attention(CudaLibraries& libraries, const CudaCall& k) {
  Result<CudnnCard> cudnn = libraries.cudnn();
  if (!cudnn) return cudnn.takeError();
  const int64_t batch = k.operands[0].type.shape[0];
  auto prepared = std::make_unique<PreparedCudnn>();
  prepared->cudnn = cudnn->handle;
  for (int64_t pieces = 1; pieces <= batch; ++pieces) {
    if (batch % pieces != 0) continue;
    Result<std::unique_ptr<CudnnPlan>> plan = plan_attention_pass(*cudnn, attention_of(k, batch / pieces, ordered));
    if (!plan) return plan.takeError();
    prepared->plan = std::move(*plan);
    prepared->pieces = pieces;
    if (prepared->plan->workspace_bytes() <= k.workspace_bytes) return prepared;
  }
  return too_large(k, prepared->plan->workspace_bytes());
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
  PreparedCudnn& cudnn = prepared(k);
  llvm::SmallVector<const void*, 9> pointers;
  for (int64_t piece = 0; piece < cudnn.pieces; ++piece) {
    pointers.clear();
    for (const BatchPart& tensor : tensors) pointers.push_back(tensor.piece(piece, cudnn.pieces));
    if (Status s = cudnn.run(k, pointers)) return s;
  }
  return Status::success();
}

Status launch_attention(const CudaCall& k) {
  const AttentionSizes n(k.call);
  return run_pieces(k, {{k.operands[0]},
                        {k.operands[n.k_operand], n.k_start},
                        {k.operands[n.v_operand], n.v_start},
                        {k.results[0]},
                        {k.results[1]}});
}

Status launch_attention_grad(const CudaCall& k) {
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

constexpr CudaLauncher launchers[] = {
    {"conv", "cudnn", launch_conv, prepare_conv},
    {"conv_dx", "cudnn", launch_conv_dx, prepare_conv_dx},
    {"conv_dw", "cudnn", launch_conv_dw, prepare_conv_dw},
    {"conv", "cudnn_padded", launch_padded_conv, prepare_padded_conv},
    {"conv_dw", "cudnn_padded", launch_padded_conv_dw, prepare_padded_conv_dw},
    {"conv_transpose", "cudnn", launch_conv_dx, prepare_conv_dx},
    {"attention", "cudnn", launch_attention, prepare_attention<plan_attention>},
    {"attention_grad", "cudnn_ordered", launch_attention_grad, prepare_attention<plan_attention_grad, true>},
    {"attention_grad", "cudnn", launch_attention_grad, prepare_attention<plan_attention_grad>},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> cuda_library_launchers() { return launchers; }

}  // namespace plimsoll
