#include "ir/support/align.h"
#include "kernels/cuda/conv/channel_bias.h"
#include "kernels/cuda/conv/space_to_batch.h"
#include "kernels/cuda/conv/space_to_depth.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "runtime/cuda/backend/device_memory.h"
#include "runtime/cuda/backend/launched.h"
#include "runtime/cuda/backend/libraries.h"
#include "runtime/cuda/backend/prepared_cudnn.h"
#include "runtime/cuda/space_to_batch.h"
#include "runtime/cuda/space_to_depth.h"

// Convolutions through cuDNN: as they are, of a fold, or of phases.

namespace plimsoll {
namespace {

// A weight gradient in f32 of 16-bit operands is first made in 16 bits, at the start of the workspace.
int64_t narrow_bytes(const CudaCall& k) {
  const Type& dw = k.results[0].type;
  return is_16_bit_float(k.operands[0].type.dtype) && dw.dtype == DType::F32 ? align_to_tensor(dw.bytes() / 2) : 0;
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

llvm::SmallVector<int64_t, 3> per_dimension(llvm::ArrayRef<int64_t> given, int64_t otherwise, size_t rank,
                                            size_t from = 0) {
  llvm::SmallVector<int64_t, 3> values;
  if (rank == 1) values.push_back(otherwise);
  for (size_t d = 0; d < rank; ++d) values.push_back(given.empty() ? otherwise : given[from + d]);
  return values;
}

using Pass = CudnnConvolution::Pass;

CudnnConvolution convolution_of(const CudaCall& k, Pass pass, const Type& x, const Type& w, const Type& y) {
  const Attrs& attrs = k.call.attrs;
  const bool channels_last = attrs.get_int("channels_last");
  const size_t rank = x.shape.size() - 2;
  return {.pass = pass,
          .x = convolution_tensor(x, channels_last),
          .w = convolution_tensor(w, channels_last),
          .y = convolution_tensor(y, channels_last),
          .pads_begin = per_dimension(attrs.get_ints("pads"), 0, rank),
          .pads_end = per_dimension(attrs.get_ints("pads"), 0, rank, rank),
          .strides = per_dimension(attrs.get_ints("strides"), 1, rank),
          .dilations = per_dimension(attrs.get_ints("dilations"), 1, rank)};
}

// `own_bytes` of the workspace are not cuDNN's.
Result<std::unique_ptr<CudaPrepared>> prepare_convolution(CudaLibraries& libraries, const CudaCall& k,
                                                          CudnnConvolution c, int64_t own_bytes, int rank = 0) {
  Result<CudnnCard> cudnn = libraries.cudnn();
  if (!cudnn) return cudnn.takeError();
  c.tensor_cores = libraries.tf32();
  const int64_t workspace_bytes = k.workspace_bytes - own_bytes;
  CudnnPlans::Plan plan = libraries.cudnn_plans().convolution(*cudnn, c, workspace_bytes, rank);
  if (!plan) return plan.takeError();
  if ((*plan)->workspace_bytes() > workspace_bytes) return workspace_too_small(k, (*plan)->workspace_bytes());
  auto prepared = std::make_unique<PreparedCudnn>();
  prepared->cudnn = cudnn->handle;
  prepared->plan = std::move(*plan);
  prepared->own_bytes = own_bytes;
  return prepared;
}

template <int rank>
Result<std::unique_ptr<CudaPrepared>> prepare_conv(CudaLibraries& libraries, const CudaCall& k) {
  return prepare_convolution(
      libraries, k, convolution_of(k, Pass::Forward, k.operands[0].type, k.operands[1].type, k.results[0].type), 0,
      rank);
}
// Of dy and w, as conv_transpose is of x and w.
template <int rank>
Result<std::unique_ptr<CudaPrepared>> prepare_conv_dx(CudaLibraries& libraries, const CudaCall& k) {
  return prepare_convolution(
      libraries, k, convolution_of(k, Pass::InputGradient, k.results[0].type, k.operands[1].type, k.operands[0].type),
      0, rank);
}
// dw as cuDNN makes it.
Type narrow_gradient(const CudaCall& k) { return {k.operands[0].type.dtype, k.results[0].type.shape}; }

template <int rank>
Result<std::unique_ptr<CudaPrepared>> prepare_conv_dw(CudaLibraries& libraries, const CudaCall& k) {
  return prepare_convolution(
      libraries, k, convolution_of(k, Pass::WeightGradient, k.operands[0].type, narrow_gradient(k), k.operands[1].type),
      narrow_bytes(k), rank);
}

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
  if (Status s = prepared_cudnn(k).run(k, {k.in(0), k.in(1), k.out(0)})) return s;
  return add_bias(k);
}
Status launch_conv_dx(const CudaCall& k) {
  if (Status s = prepared_cudnn(k).run(k, {k.out(0), k.in(1), k.in(0)})) return s;
  return add_bias(k);
}
Status launch_conv_dw(const CudaCall& k) {
  const int64_t narrow = narrow_bytes(k);
  if (narrow == 0) return prepared_cudnn(k).run(k, {k.in(0), k.out(0), k.in(1)});
  const void* dw = k.workspace;
  if (Status s = prepared_cudnn(k).run(k, {k.in(0), dw, k.in(1)})) return s;
  return cuda_status(
      cuda::cast_elements(cuda::Scalar::F32, k.out(0), k.in_scalar(0), dw, k.results[0].type.elements(), k.stream),
      "conv_dw");
}

// ---- fold ----

// Of x, and of w or dw, at the start of the workspace.
FoldedConvolution fold_of_conv(const CudaCall& k) {
  return {k.call.attrs, k.operands[0].type, k.operands[1].type, k.results[0].type.shape};
}
FoldedConvolution fold_of_conv_dw(const CudaCall& k) {
  return {k.call.attrs, k.operands[0].type, narrow_gradient(k), k.operands[1].type.shape};
}

Result<std::unique_ptr<CudaPrepared>> prepare_folded(CudaLibraries& libraries, const CudaCall& k, Pass pass,
                                                     const FoldedConvolution& folded, const Type& y, int rank) {
  const CudnnConvolution c{.pass = pass,
                           .x = convolution_tensor(folded.x_type, true),
                           .w = convolution_tensor(folded.w_type, true),
                           .y = convolution_tensor(y, true),
                           .pads_begin = {0, 0},
                           .pads_end = {0, 0},
                           .strides = {1, 1},
                           .dilations = {1, 1}};
  return prepare_convolution(libraries, k, c, folded.bytes(), rank);
}

template <int rank>
Result<std::unique_ptr<CudaPrepared>> prepare_folded_conv(CudaLibraries& libraries, const CudaCall& k) {
  return prepare_folded(libraries, k, Pass::Forward, fold_of_conv(k), k.results[0].type, rank);
}
template <int rank>
Result<std::unique_ptr<CudaPrepared>> prepare_folded_conv_dw(CudaLibraries& libraries, const CudaCall& k) {
  return prepare_folded(libraries, k, Pass::WeightGradient, fold_of_conv_dw(k), k.operands[1].type, rank);
}

Status launch_folded_conv(const CudaCall& k) {
  const FoldedConvolution folded = fold_of_conv(k);
  std::byte* x = static_cast<std::byte*>(k.workspace);
  std::byte* w = x + align_to_tensor(folded.x_type.bytes());
  if (Status s = launched(k, cuda::fold_image(x, k.in(0), folded.x, k.stream))) return s;
  if (Status s = launched(k, cuda::fold_image(w, k.in(1), folded.w, k.stream))) return s;
  if (Status s = prepared_cudnn(k).run(k, {x, w, k.out(0)})) return s;
  return add_bias(k);
}
Status launch_folded_conv_dw(const CudaCall& k) {
  const FoldedConvolution folded = fold_of_conv_dw(k);
  std::byte* x = static_cast<std::byte*>(k.workspace);
  std::byte* dw = x + align_to_tensor(folded.x_type.bytes());
  if (Status s = launched(k, cuda::fold_image(x, k.in(0), folded.x, k.stream))) return s;
  if (Status s = prepared_cudnn(k).run(k, {x, dw, k.in(1)})) return s;
  return launched(k, cuda::unfold_image(k.out_scalar(0), k.out(0), k.in_scalar(0), dw, folded.w, k.stream));
}

// ---- phases ----

// Of x and y, then of a narrow dw, at the start of the workspace.
PhasedConvolution phases_of(const CudaCall& k, const Type& x, const Type& w, const Type& y) {
  return *PhasedConvolution::of(k.call.attrs, x, w.shape, y.shape);
}
PhasedConvolution phases_of_conv(const CudaCall& k) {
  return phases_of(k, k.operands[0].type, k.operands[1].type, k.results[0].type);
}
PhasedConvolution phases_of_conv_dx(const CudaCall& k) {
  return phases_of(k, k.results[0].type, k.operands[1].type, k.operands[0].type);
}
PhasedConvolution phases_of_conv_dw(const CudaCall& k) {
  return phases_of(k, k.operands[0].type, k.results[0].type, k.operands[1].type);
}

Result<std::unique_ptr<CudaPrepared>> prepare_phases(CudaLibraries& libraries, const CudaCall& k, Pass pass,
                                                     const PhasedConvolution& phased, const Type& w, int64_t own_bytes,
                                                     int rank) {
  const CudnnConvolution c{.pass = pass,
                           .x = convolution_tensor(phased.x_type, true),
                           .w = convolution_tensor(w, true),
                           .y = convolution_tensor(phased.y_type, true),
                           .pads_begin = phased.pads_begin,
                           .pads_end = phased.pads_end,
                           .strides = {1, 1},
                           .dilations = phased.dilations};
  return prepare_convolution(libraries, k, c, own_bytes, rank);
}

template <int rank>
Result<std::unique_ptr<CudaPrepared>> prepare_phased_conv(CudaLibraries& libraries, const CudaCall& k) {
  const PhasedConvolution phased = phases_of_conv(k);
  return prepare_phases(libraries, k, Pass::Forward, phased, k.operands[1].type, phased.bytes(), rank);
}
template <int rank>
Result<std::unique_ptr<CudaPrepared>> prepare_phased_conv_dx(CudaLibraries& libraries, const CudaCall& k) {
  const PhasedConvolution phased = phases_of_conv_dx(k);
  return prepare_phases(libraries, k, Pass::InputGradient, phased, k.operands[1].type, phased.bytes(), rank);
}
template <int rank>
Result<std::unique_ptr<CudaPrepared>> prepare_phased_conv_dw(CudaLibraries& libraries, const CudaCall& k) {
  const PhasedConvolution phased = phases_of_conv_dw(k);
  return prepare_phases(libraries, k, Pass::WeightGradient, phased, narrow_gradient(k),
                        phased.bytes() + narrow_bytes(k), rank);
}

// What a call does once for each part of the batch.
struct PhasedRun {
  const CudaCall& k;
  const PhasedConvolution& phased;
  std::byte* x = static_cast<std::byte*>(k.workspace);
  std::byte* y = x + align_to_tensor(phased.x_type.bytes());
  std::byte* narrow_dw = y + align_to_tensor(phased.y_type.bytes());

  std::byte* part(const TensorView& image, int64_t run) const {
    return image.as<std::byte>() + image.type.bytes() / phased.runs * run;
  }
  Status split(std::byte* phases, const TensorView& image, int64_t run, const cuda::Phases& sizes) const {
    return launched(k, cuda::split_phases(phases, part(image, run), sizes, k.stream));
  }
  Status join(const TensorView& image, int64_t run, const std::byte* phases, const cuda::Phases& sizes) const {
    return launched(k, cuda::join_phases(part(image, run), phases, sizes, k.stream));
  }
};

Status launch_phased_conv(const CudaCall& k) {
  const PhasedConvolution phased = phases_of_conv(k);
  const PhasedRun at{k, phased};
  for (int64_t run = 0; run < phased.runs; ++run) {
    if (Status s = at.split(at.x, k.operands[0], run, phased.x)) return s;
    if (Status s = prepared_cudnn(k).run(k, {at.x, k.in(1), at.y})) return s;
    if (Status s = at.join(k.results[0], run, at.y, phased.y)) return s;
  }
  return add_bias(k);
}

Status launch_phased_conv_dx(const CudaCall& k) {
  const PhasedConvolution phased = phases_of_conv_dx(k);
  const PhasedRun at{k, phased};
  for (int64_t run = 0; run < phased.runs; ++run) {
    if (Status s = at.split(at.y, k.operands[0], run, phased.y)) return s;
    if (Status s = prepared_cudnn(k).run(k, {at.x, k.in(1), at.y})) return s;
    if (Status s = at.join(k.results[0], run, at.x, phased.x)) return s;
  }
  return Status::success();
}

Status launch_phased_conv_dw(const CudaCall& k) {
  const PhasedConvolution phased = phases_of_conv_dw(k);
  const PhasedRun at{k, phased};
  for (int64_t run = 0; run < phased.runs; ++run) {
    if (Status s = at.split(at.x, k.operands[0], run, phased.x)) return s;
    if (Status s = at.split(at.y, k.operands[1], run, phased.y)) return s;
    if (Status s = prepared_cudnn(k).run(k, {at.x, at.narrow_dw, at.y})) return s;
    if (Status s = launched(k, cuda::add_part(k.out<float>(0), k.in_scalar(0), at.narrow_dw, run == 0,
                                              k.results[0].elements(), k.stream)))
      return s;
  }
  return Status::success();
}

constexpr CudaLauncher launchers[] = {
    {"conv", "cudnn", launch_conv, prepare_conv<0>},
    {"conv", "cudnn_2", launch_conv, prepare_conv<1>},
    {"conv", "cudnn_3", launch_conv, prepare_conv<2>},
    {"conv", "cudnn_4", launch_conv, prepare_conv<3>},
    {"conv", "cudnn_5", launch_conv, prepare_conv<4>},
    {"conv", "cudnn_6", launch_conv, prepare_conv<5>},
    {"conv_dx", "cudnn", launch_conv_dx, prepare_conv_dx<0>},
    {"conv_dx", "cudnn_2", launch_conv_dx, prepare_conv_dx<1>},
    {"conv_dx", "cudnn_3", launch_conv_dx, prepare_conv_dx<2>},
    {"conv_dx", "cudnn_4", launch_conv_dx, prepare_conv_dx<3>},
    {"conv_dx", "cudnn_5", launch_conv_dx, prepare_conv_dx<4>},
    {"conv_dx", "cudnn_6", launch_conv_dx, prepare_conv_dx<5>},
    {"conv_dw", "cudnn", launch_conv_dw, prepare_conv_dw<0>},
    {"conv_dw", "cudnn_2", launch_conv_dw, prepare_conv_dw<1>},
    {"conv_dw", "cudnn_3", launch_conv_dw, prepare_conv_dw<2>},
    {"conv_dw", "cudnn_4", launch_conv_dw, prepare_conv_dw<3>},
    {"conv_dw", "cudnn_5", launch_conv_dw, prepare_conv_dw<4>},
    {"conv_dw", "cudnn_6", launch_conv_dw, prepare_conv_dw<5>},
    {"conv_transpose", "cudnn", launch_conv_dx, prepare_conv_dx<0>},
    {"conv_transpose", "cudnn_2", launch_conv_dx, prepare_conv_dx<1>},
    {"conv_transpose", "cudnn_3", launch_conv_dx, prepare_conv_dx<2>},
    {"conv_transpose", "cudnn_4", launch_conv_dx, prepare_conv_dx<3>},
    {"conv_transpose", "cudnn_5", launch_conv_dx, prepare_conv_dx<4>},
    {"conv_transpose", "cudnn_6", launch_conv_dx, prepare_conv_dx<5>},
    {"conv", "cudnn_folded", launch_folded_conv, prepare_folded_conv<0>},
    {"conv", "cudnn_folded_2", launch_folded_conv, prepare_folded_conv<1>},
    {"conv", "cudnn_folded_3", launch_folded_conv, prepare_folded_conv<2>},
    {"conv_dw", "cudnn_folded", launch_folded_conv_dw, prepare_folded_conv_dw<0>},
    {"conv_dw", "cudnn_folded_2", launch_folded_conv_dw, prepare_folded_conv_dw<1>},
    {"conv_dw", "cudnn_folded_3", launch_folded_conv_dw, prepare_folded_conv_dw<2>},
    {"conv", "cudnn_phases", launch_phased_conv, prepare_phased_conv<0>},
    {"conv", "cudnn_phases_2", launch_phased_conv, prepare_phased_conv<1>},
    {"conv", "cudnn_phases_3", launch_phased_conv, prepare_phased_conv<2>},
    {"conv_dx", "cudnn_phases", launch_phased_conv_dx, prepare_phased_conv_dx<0>},
    {"conv_dx", "cudnn_phases_2", launch_phased_conv_dx, prepare_phased_conv_dx<1>},
    {"conv_dx", "cudnn_phases_3", launch_phased_conv_dx, prepare_phased_conv_dx<2>},
    {"conv_dw", "cudnn_phases", launch_phased_conv_dw, prepare_phased_conv_dw<0>},
    {"conv_dw", "cudnn_phases_2", launch_phased_conv_dw, prepare_phased_conv_dw<1>},
    {"conv_dw", "cudnn_phases_3", launch_phased_conv_dw, prepare_phased_conv_dw<2>},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> cuda_convolution_launchers() { return launchers; }

}  // namespace plimsoll
