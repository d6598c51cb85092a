#include "kernels/cpu/conv/convolution.h"
#include "runtime/cpu/kernels_families.h"

// conv, its gradients, and conv_transpose, which is conv's input gradient used forward. Workspace holds
// blocked copies of the three tensors, by a formula of their shapes; oneDNN's own scratch is part of the
// prepared state.

namespace plimsoll {
namespace {

using cpu::ConvolutionPass;

// The convolution of x with w that gives y.
cpu::ConvolutionShape convolution_of(const Attrs& attrs, llvm::ArrayRef<int64_t> x, llvm::ArrayRef<int64_t> w,
                                     llvm::ArrayRef<int64_t> y, bool bias) {
  const bool channels_last = attrs.get_int("channels_last") != 0;
  const int first = channels_last ? 1 : 2;  // spatial dimension
  cpu::ConvolutionShape shape{.spatial_rank = static_cast<int>(x.size()) - 2,
                              .batch = x[0],
                              .in_channels = channels_last ? x.back() : x[1],
                              .out_channels = channels_last ? y.back() : y[1],
                              .groups = attrs.get_int("groups", 1),
                              .bias = bias,
                              .channels_last = channels_last};
  llvm::ArrayRef<int64_t> strides = attrs.get_ints("strides"), dilations = attrs.get_ints("dilations"),
                          pads = attrs.get_ints("pads");
  for (int d = 0; d < shape.spatial_rank; ++d) {
    shape.input[d] = x[d + first];
    shape.output[d] = y[d + first];
    shape.kernel[d] = w[d + first];
    shape.strides[d] = strides.empty() ? 1 : strides[d];
    shape.dilations[d] = dilations.empty() ? 1 : dilations[d];
    shape.pads_begin[d] = pads.empty() ? 0 : pads[d];
    shape.pads_end[d] = pads.empty() ? 0 : pads[d + shape.spatial_rank];
  }
  return shape;
}

cpu::ConvolutionShape shape_of_conv(const OpCall& call, llvm::ArrayRef<Type> results) {
  return convolution_of(call.attrs, call.operand(0).shape, call.operand(1).shape, results[0].shape, call.has(2));
}
cpu::ConvolutionShape shape_of_conv_dx(const OpCall& call, llvm::ArrayRef<Type> results) {
  return convolution_of(call.attrs, results[0].shape, call.operand(1).shape, call.operand(0).shape, false);
}
cpu::ConvolutionShape shape_of_conv_dw(const OpCall& call, llvm::ArrayRef<Type> results) {
  return convolution_of(call.attrs, call.operand(0).shape, results[0].shape, call.operand(1).shape, false);
}

using ShapeOf = cpu::ConvolutionShape (*)(const OpCall&, llvm::ArrayRef<Type>);

template <ShapeOf shape_of>
int64_t workspace(const OpCall& call, llvm::ArrayRef<Type> results) {
  return cpu::convolution_workspace_bytes(shape_of(call, results));
}

struct PreparedConvolutionKernel : PreparedKernel {
  std::unique_ptr<cpu::PreparedConvolution> convolution;
};

template <ConvolutionPass pass, ShapeOf shape_of>
Result<std::unique_ptr<PreparedKernel>> prepare(cpu::Library& library, const OpCall& call,
                                                llvm::ArrayRef<Type> results) {
  auto prepared = std::make_unique<PreparedConvolutionKernel>();
  std::string why;
  prepared->convolution = cpu::PreparedConvolution::create(library, pass, shape_of(call, results), why);
  if (!prepared->convolution) return system_error("oneDNN refuses a convolution: " + why);
  return prepared;
}

Status run(const KernelCall& k, const float* x, const float* w, const float* y, const float* bias) {
  auto* prepared = static_cast<PreparedConvolutionKernel*>(k.prepared);
  if (prepared->convolution->run(x, w, y, bias, k.workspace)) return Status::success();
  return system_error("oneDNN failed in a convolution");
}

Status launch_conv(const KernelCall& k) {
  return run(k, k.in<float>(0), k.in<float>(1), k.out<float>(0), k.in<float>(2));
}

Status launch_conv_dx(const KernelCall& k) { return run(k, k.out<float>(0), k.in<float>(1), k.in<float>(0), nullptr); }

Status launch_conv_dw(const KernelCall& k) { return run(k, k.in<float>(0), k.out<float>(0), k.in<float>(1), nullptr); }

Status launch_conv_transpose(const KernelCall& k) {
  if (Status s = launch_conv_dx(k)) return s;
  if (!k.has(2)) return Status::success();
  const int64_t elements = k.results[0].type.elements(), channels = k.call.operand(2).elements();
  const int64_t batch = k.call.attrs.get_int("channels_last") ? elements / channels : k.results[0].type.shape[0];
  cpu::add_channel_bias(k.out<float>(0), k.in<float>(2), batch, channels, elements / (batch * channels));
  return Status::success();
}

bool accepts_conv(const OpCall& call, llvm::ArrayRef<Type> results) {
  if (!all_f32(call, results)) return false;
  for (size_t i = 0; i < 2; ++i)
    if (call.operand(i).elements() == 0) return false;
  return results[0].elements() != 0;
}

constexpr CpuKernel kernels[] = {
    {"conv", "onednn", accepts_conv, launch_conv, workspace<shape_of_conv>,
     prepare<ConvolutionPass::Forward, shape_of_conv>},
    {"conv_dx", "onednn", accepts_conv, launch_conv_dx, workspace<shape_of_conv_dx>,
     prepare<ConvolutionPass::InputGradient, shape_of_conv_dx>},
    {"conv_dw", "onednn", accepts_conv, launch_conv_dw, workspace<shape_of_conv_dw>,
     prepare<ConvolutionPass::WeightGradient, shape_of_conv_dw>},
    {"conv_transpose", "onednn", accepts_conv, launch_conv_transpose, workspace<shape_of_conv_dx>,
     prepare<ConvolutionPass::InputGradient, shape_of_conv_dx>},
};

}  // namespace

llvm::ArrayRef<CpuKernel> conv_kernels() { return kernels; }

}  // namespace plimsoll
