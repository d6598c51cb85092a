#include "kernels/cuda/conv/channel_bias.h"
#include "kernels/cuda/conv/space_to_batch.h"
#include "kernels/cuda/conv/space_to_depth.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/matmul/gradient_sums_product.h"
#include "kernels/cuda/matmul/moments_product.h"
#include "kernels/cuda/norm/batch_norm.h"
#include "runtime/cuda/backend/libraries.h"
#include "runtime/cuda/backend/prepared_cudnn.h"
#include "runtime/kernels/norm.h"
#include "runtime/kernels/space_to_batch.h"
#include "runtime/kernels/space_to_depth.h"

// Convolutions through cuDNN: as they are, by space to depth, or by space to batch. Those with moments or with sums of
// a norm's gradient have a pass over the result behind them, or are a product of our own.

namespace plimsoll {
namespace {

// A weight gradient in f32 of 16-bit operands is first made in 16 bits, in the workspace.
int64_t narrow_bytes(const CudaCall& k) {
  const Type& dw = k.results[0].type;
  return is_widened(k.call, dw) ? align_to_tensor(dw.bytes() / 2) : 0;
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

// The first `rank` entries; a line is an image one pixel high, whose other dimension has `otherwise`.
llvm::SmallVector<int64_t, 3> per_dimension(const Spatial& values, int64_t otherwise, size_t rank) {
  llvm::SmallVector<int64_t, 3> listed;
  if (rank == 1) listed.push_back(otherwise);
  listed.append(values.begin(), values.begin() + rank);
  return listed;
}

CudnnConvolution convolution_of(ConvPass pass, const Attrs& attrs, const ConvTypes& types) {
  const bool channels_last = attrs.get_int("channels_last");
  const SlidingWindow window = window_of(attrs, types.w.shape);
  return {.pass = pass,
          .x = convolution_tensor(types.x, channels_last),
          .w = convolution_tensor({types.x.dtype, types.w.shape}, channels_last),
          .y = convolution_tensor(types.y, channels_last),
          .pads_begin = per_dimension(window.pads_begin, 0, window.rank),
          .pads_end = per_dimension(window.pads_end, 0, window.rank),
          .strides = per_dimension(window.strides, 1, window.rank),
          .dilations = per_dimension(window.dilations, 1, window.rank)};
}

// `own_bytes` of the workspace are not cuDNN's.
Result<std::unique_ptr<CudaPrepared>> prepare_convolution(CudaLibraries& libraries, const CudaCall& k,
                                                          CudnnConvolution c, int64_t own_bytes) {
  Result<CudnnCard> cudnn = libraries.cudnn();
  if (!cudnn) return cudnn.takeError();
  c.tensor_cores = libraries.tf32();
  const int64_t workspace_bytes = k.workspace_bytes - own_bytes;
  CudnnPlans::Plan plan = libraries.cudnn_plans().convolution(*cudnn, c, workspace_bytes, k.algorithm);
  if (!plan) return plan.takeError();
  if ((*plan)->workspace_bytes() > workspace_bytes) return workspace_too_small(k, (*plan)->workspace_bytes());
  auto prepared = std::make_unique<PreparedCudnn>();
  prepared->cudnn = cudnn->handle;
  prepared->plan = std::move(*plan);
  prepared->own_bytes = own_bytes;
  return prepared;
}

// The bias is operand 2 of conv and conv_transpose; the gradients have two operands.
Status add_bias(const CudaCall& k) {
  if (!k.has(2)) return Status::success();
  const llvm::ArrayRef<int64_t> y = k.out_shape("y");
  const bool channels_last = k.call.get_int("channels_last");
  const int64_t channels = channels_last ? y.back() : y[1];
  const int64_t inner = channels_last ? 1 : element_count(y.drop_front(2));
  return launched(
      k, cuda::add_channel_bias(k.out_scalar("y"), k.out("y"), k.in(2), k.elements(), channels, inner, k.stream));
}

template <ConvPass pass>
Result<std::unique_ptr<CudaPrepared>> prepare(CudaLibraries& libraries, const CudaCall& k) {
  return prepare_convolution(libraries, k, convolution_of(pass, k.attrs(), ConvTypes(pass, k)), narrow_bytes(k));
}

template <ConvPass pass>
Status launch(const CudaCall& k) {
  const ConvTensors at(pass, k);
  const bool is_narrow = narrow_bytes(k) > 0;
  const void* w = is_narrow ? k.workspace : at.w.data;
  if (Status s = prepared_cudnn(k).run(k, {at.x.data, w, at.y.data})) return s;
  if (!is_narrow) return add_bias(k);
  return launched(k, cuda::cast_elements(Scalar::F32, k.out("dw"), k.in_scalar("x"), w, k.elements(), k.stream));
}

// ---- Space to depth: blocks of x, then of w or dw, at the start of the workspace ----

template <ConvPass pass>
Result<std::unique_ptr<CudaPrepared>> prepare_space_to_depth(CudaLibraries& libraries, const CudaCall& k) {
  const ConvTypes types(pass, k);
  const SpaceToDepthConvolution made(k.attrs(), types);
  const CudnnConvolution c{.pass = pass,
                           .x = convolution_tensor(made.x_type, true),
                           .w = convolution_tensor(made.w_type, true),
                           .y = convolution_tensor(types.y, true),
                           .pads_begin = {0, 0},
                           .pads_end = {0, 0},
                           .strides = {1, 1},
                           .dilations = {1, 1}};
  return prepare_convolution(libraries, k, c, made.bytes());
}

template <ConvPass pass>
Status launch_space_to_depth(const CudaCall& k) {
  const ConvTensors at(pass, k);
  const SpaceToDepthConvolution made(k.attrs(), ConvTypes(pass, k));
  std::byte* x = k.scratch<std::byte>();
  std::byte* w = x + align_to_tensor(made.x_type.bytes());
  if (Status s = launched(k, cuda::space_to_depth(x, at.x.data, made.x, k.stream))) return s;
  if (pass == ConvPass::Forward)
    if (Status s = launched(k, cuda::space_to_depth(w, at.w.data, made.w, k.stream))) return s;
  if (Status s = prepared_cudnn(k).run(k, {x, w, at.y.data})) return s;
  if (pass == ConvPass::Forward) return add_bias(k);
  return launched(k, cuda::depth_to_space(k.out_scalar("dw"), k.out("dw"), k.in_scalar("x"), w, made.w, k.stream));
}

// ---- Space to batch: sub-images of x and y, then a narrow dw, at the start of the workspace ----

SpaceToBatchConvolution space_to_batch_of(const CudaCall& k, const ConvTypes& types) {
  return *SpaceToBatchConvolution::of(k.attrs(), types.x, types.w.shape, types.y.shape);
}

template <ConvPass pass>
Result<std::unique_ptr<CudaPrepared>> prepare_space_to_batch(CudaLibraries& libraries, const CudaCall& k) {
  const ConvTypes types(pass, k);
  const SpaceToBatchConvolution made = space_to_batch_of(k, types);
  const CudnnConvolution c{.pass = pass,
                           .x = convolution_tensor(made.x_type, true),
                           .w = convolution_tensor({types.x.dtype, types.w.shape}, true),
                           .y = convolution_tensor(made.y_type, true),
                           .pads_begin = made.pads_begin,
                           .pads_end = made.pads_end,
                           .strides = {1, 1},
                           .dilations = made.dilations};
  return prepare_convolution(libraries, k, c, made.bytes() + narrow_bytes(k));
}

// Where chunk `run` of the batch begins.
std::byte* chunk_of(const TensorView& image, int64_t run, int64_t runs) {
  return image.as<std::byte>() + image.type.bytes() / runs * run;
}

template <ConvPass pass>
Status launch_space_to_batch(const CudaCall& k) {
  const ConvTensors at(pass, k);
  const SpaceToBatchConvolution made = space_to_batch_of(k, ConvTypes(pass, k));
  std::byte* x = k.scratch<std::byte>();
  std::byte* y = x + align_to_tensor(made.x_type.bytes());
  std::byte* narrow_dw = y + align_to_tensor(made.y_type.bytes());
  const void* w = pass == ConvPass::WeightGradient ? narrow_dw : at.w.data;
  for (int64_t run = 0; run < made.runs; ++run) {
    std::byte *x_image = chunk_of(at.x, run, made.runs), *y_image = chunk_of(at.y, run, made.runs);
    if (pass != ConvPass::InputGradient)
      if (Status s = launched(k, cuda::space_to_batch(x, x_image, made.x, k.stream))) return s;
    if (pass != ConvPass::Forward)
      if (Status s = launched(k, cuda::space_to_batch(y, y_image, made.y, k.stream))) return s;
    if (Status s = prepared_cudnn(k).run(k, {x, w, y})) return s;
    cudaError_t made_result = cudaSuccess;
    if (pass == ConvPass::Forward) made_result = cuda::batch_to_space(y_image, y, made.y, k.stream);
    if (pass == ConvPass::InputGradient) made_result = cuda::batch_to_space(x_image, x, made.x, k.stream);
    if (pass == ConvPass::WeightGradient)
      made_result = cuda::add_chunk(k.out<float>("dw"), k.in_scalar("x"), narrow_dw, run == 0, k.elements(), k.stream);
    if (Status s = launched(k, made_result)) return s;
  }
  return add_bias(k);
}

// ---- conv_moments ----

// Partial statistics stand at the start of the workspace.
Result<std::unique_ptr<CudaPrepared>> prepare_with_moments(CudaLibraries& libraries, const CudaCall& k) {
  const Type& y = k.results[0].type;
  return prepare_convolution(libraries, k,
                             convolution_of(ConvPass::Forward, k.attrs(), ConvTypes(ConvPass::Forward, k)),
                             moments_workspace_bytes(channels_of_result(k.call, y), y.dtype));
}

Status launch_with_moments(const CudaCall& k) {
  if (Status s = launch<ConvPass::Forward>(k)) return s;
  const cuda::BatchNormCall call{.shape = channels_of_result(k.call, k.results[0].type),
                                 .y = nullptr,
                                 .x = k.out("y"),
                                 .scale = nullptr,
                                 .bias = nullptr,
                                 .x_type = k.out_scalar("y"),
                                 .parameter_type = k.out_scalar("y"),
                                 .eps = 1,
                                 .workspace = k.scratch<float>()};
  return launched(k, cuda::batch_moments(call, k.out<float>("mean"), k.out<float>("var"), k.stream));
}

struct PreparedProduct : CudaPrepared {
  explicit PreparedProduct(const cuda::ColumnTiling& tiling) : tiling(tiling) {}

  cuda::ColumnTiling tiling;
};

// On a card unlike the plan's, blocks are counted anew within the plan's workspace.
Result<std::unique_ptr<CudaPrepared>> prepare_moments_product(CudaLibraries& libraries, const CudaCall& k) {
  return std::make_unique<PreparedProduct>(
      cuda::choose_moments_tiling(*moments_sizes(k.call, k.result_types()), libraries.card().multiProcessorCount,
                                  k.workspace_bytes / static_cast<int64_t>(sizeof(float))));
}

Status launch_moments_product(const CudaCall& k) {
  const cuda::MomentsProductCall call{.tiling = static_cast<const PreparedProduct*>(k.prepared)->tiling,
                                      .left = k.in("x"),
                                      .right = k.in("w"),
                                      .y = k.out("y"),
                                      .mean = k.out<float>("mean"),
                                      .var = k.out<float>("var"),
                                      .type = k.out_scalar("y"),
                                      .workspace = k.scratch<float>()};
  return launched(k, cuda::moments_product(call, k.stream));
}

// ---- conv_dx_sums ----

Result<std::unique_ptr<CudaPrepared>> prepare_with_sums(CudaLibraries& libraries, const CudaCall& k) {
  const Type& dx = k.results[0].type;
  return prepare_convolution(libraries, k,
                             convolution_of(ConvPass::InputGradient, k.attrs(), ConvTypes(ConvPass::InputGradient, k)),
                             gradient_sums_workspace_bytes(channels_of_result(k.call, dx), dx.dtype));
}

// dx is made where dz goes, and dz over it.
Status launch_with_sums(const CudaCall& k) {
  const ConvTensors at(ConvPass::InputGradient, k);
  if (Status s = prepared_cudnn(k).run(k, {at.x.data, at.w.data, at.y.data})) return s;
  const cuda::BatchNormGradCall call{.shape = channels_of_result(k.call, k.results[0].type),
                                     .dx = nullptr,
                                     .dscale = k.out("dscale"),
                                     .dbias = k.out("dbias"),
                                     .x = k.in("x"),
                                     .dy = k.out("dz"),
                                     .scale = k.in("scale"),
                                     .bias = k.in("bias"),
                                     .y = k.in("y"),
                                     .more_dy = k.in("more_dy"),
                                     .dresidual = k.has("y") ? k.out("dz") : nullptr,
                                     .mean = k.in<float>("mean"),
                                     .var = k.in<float>("var"),
                                     .x_type = k.in_scalar("x"),
                                     .parameter_type = k.in_scalar("scale"),
                                     .eps = eps_of(k.call),
                                     .workspace = k.scratch<float>()};
  return launched(k, cuda::batch_norm_sums(call, k.out<float>("sums"), k.stream));
}

Result<std::unique_ptr<CudaPrepared>> prepare_gradient_sums(CudaLibraries& libraries, const CudaCall& k) {
  const GradientSumsSizes sizes = *gradient_sums_sizes(k.call, k.result_types());
  return std::make_unique<PreparedProduct>(
      cuda::choose_gradient_tiling(sizes.product, sizes.beside, libraries.card().multiProcessorCount,
                                   k.workspace_bytes / static_cast<int64_t>(sizeof(float))));
}

Status launch_gradient_sums(const CudaCall& k) {
  const cuda::GradientSumsCall call{.tiling = static_cast<const PreparedProduct*>(k.prepared)->tiling,
                                    .dy = k.in("dy"),
                                    .w = k.in("w"),
                                    .x = k.in("x"),
                                    .y = k.in("y"),
                                    .more_dy = k.in("more_dy"),
                                    .mean = k.in<float>("mean"),
                                    .var = k.in<float>("var"),
                                    .scale = k.in("scale"),
                                    .bias = k.in("bias"),
                                    .dz = k.out("dz"),
                                    .sums = k.out<float>("sums"),
                                    .dscale = k.out("dscale"),
                                    .dbias = k.out("dbias"),
                                    .type = k.out_scalar("dz"),
                                    .parameter_type = k.in_scalar("scale"),
                                    .eps = eps_of(k.call),
                                    .workspace = k.scratch<float>()};
  return launched(k, cuda::gradient_sums_product(call, k.stream));
}

// cuDNN's choice depends on the workspace that the plan gives it.
template <ConvPass pass>
constexpr CudaLauncher plain(const OpDef& op, llvm::StringLiteral name = "cudnn") {
  return {op, name, launch<pass>, prepare<pass>};
}
template <ConvPass pass>
constexpr CudaLauncher by_space_to_depth(const OpDef& op) {
  return {op, "cudnn_space_to_depth", launch_space_to_depth<pass>, prepare_space_to_depth<pass>};
}
template <ConvPass pass>
constexpr CudaLauncher by_space_to_batch(const OpDef& op) {
  return {op, "cudnn_space_to_batch", launch_space_to_batch<pass>, prepare_space_to_batch<pass>};
}

constexpr CudaLauncher conv_table[] = {
    plain<ConvPass::Forward>(op_conv),
    plain<ConvPass::InputGradient>(op_conv_dx),
    plain<ConvPass::InputGradient>(op_conv_transpose),
    plain<ConvPass::WeightGradient>(op_conv_dw),
    plain<ConvPass::Forward>(op_conv, "cudnn_lean"),
    plain<ConvPass::InputGradient>(op_conv_dx, "cudnn_lean"),
    plain<ConvPass::InputGradient>(op_conv_transpose, "cudnn_lean"),
    plain<ConvPass::WeightGradient>(op_conv_dw, "cudnn_lean"),
    by_space_to_depth<ConvPass::Forward>(op_conv),
    by_space_to_depth<ConvPass::WeightGradient>(op_conv_dw),
    by_space_to_batch<ConvPass::Forward>(op_conv),
    by_space_to_batch<ConvPass::InputGradient>(op_conv_dx),
    by_space_to_batch<ConvPass::WeightGradient>(op_conv_dw),
    {op_conv_moments, "cudnn", launch_with_moments, prepare_with_moments},
    {op_conv_moments, "warpgroup_moments", launch_moments_product, prepare_moments_product},
    {op_conv_dx_sums, "cudnn", launch_with_sums, prepare_with_sums},
    {op_conv_dx_sums, "warpgroup_sums", launch_gradient_sums, prepare_gradient_sums},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> conv_launchers() { return conv_table; }

}  // namespace plimsoll
