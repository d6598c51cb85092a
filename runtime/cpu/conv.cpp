#include "runtime/kernels/conv.h"
#include "kernels/cpu/conv/convolution.h"
#include "runtime/cpu/kernels.h"

// conv, its gradients, and conv_transpose, which is conv's input gradient used forward. Workspace holds
// blocked copies of the three tensors, by a formula of their shapes; oneDNN's own scratch is part of the
// prepared state.

namespace plimsoll {
namespace {

cpu::ConvolutionShape shape_of(const OpCall& call, const ConvTypes& types, bool bias) {
  const llvm::ArrayRef<int64_t> x = types.x.shape, y = types.y.shape;
  const bool channels_last = call.get_int("channels_last") != 0;
  const size_t first = channels_last ? 1 : 2;  // spatial dimension
  const SlidingWindow window = window_of(call.attrs, types.w.shape);
  cpu::ConvolutionShape shape{.spatial_rank = static_cast<int>(window.rank),
                              .batch = x[0],
                              .in_channels = channels_last ? x.back() : x[1],
                              .out_channels = channels_last ? y.back() : y[1],
                              .groups = call.get_int("groups"),
                              .bias = bias,
                              .channels_last = channels_last};
  for (size_t d = 0; d < window.rank; ++d) {
    shape.input[d] = x[d + first];
    shape.output[d] = y[d + first];
    shape.kernel[d] = window.kernel[d];
    shape.strides[d] = window.strides[d];
    shape.dilations[d] = window.dilations[d];
    shape.pads_begin[d] = window.pads_begin[d];
    shape.pads_end[d] = window.pads_end[d];
  }
  return shape;
}

// oneDNN adds the bias forward alone.
template <ConvPass pass>
cpu::ConvolutionShape shape_of(const OpCall& call, llvm::ArrayRef<Type> results) {
  return shape_of(call, ConvTypes(pass, call, results), pass == ConvPass::Forward && call.has("bias"));
}

template <ConvPass pass>
int64_t workspace(const OpCall& call, llvm::ArrayRef<Type> results) {
  return cpu::convolution_workspace_bytes(shape_of<pass>(call, results));
}

static_assert(static_cast<cpu::ConvolutionPass>(ConvPass::Forward) == cpu::ConvolutionPass::Forward &&
              static_cast<cpu::ConvolutionPass>(ConvPass::InputGradient) == cpu::ConvolutionPass::InputGradient &&
              static_cast<cpu::ConvolutionPass>(ConvPass::WeightGradient) == cpu::ConvolutionPass::WeightGradient);

struct PreparedConvolutionKernel : PreparedKernel {
  std::unique_ptr<cpu::PreparedConvolution> convolution;
};

template <ConvPass pass>
Result<std::unique_ptr<PreparedKernel>> prepare(cpu::Library& library, const OpCall& call,
                                                llvm::ArrayRef<Type> results) {
  auto prepared = std::make_unique<PreparedConvolutionKernel>();
  std::string why;
  prepared->convolution = cpu::PreparedConvolution::create(library, static_cast<cpu::ConvolutionPass>(pass),
                                                           shape_of<pass>(call, results), why);
  if (!prepared->convolution) return system_error("oneDNN refuses a convolution: " + why);
  return prepared;
}

template <ConvPass pass>
Status launch(const CpuCall& k) {
  const ConvTensors at(pass, k);
  const float* bias = pass == ConvPass::Forward ? k.in<float>("bias") : nullptr;
  auto* prepared = static_cast<PreparedConvolutionKernel*>(k.prepared);
  if (prepared->convolution->run(at.x.as<float>(), at.w.as<float>(), at.y.as<float>(), bias, k.workspace))
    return Status::success();
  return system_error("oneDNN failed in a convolution");
}

Status launch_conv_transpose(const CpuCall& k) {
  if (Status s = launch<ConvPass::InputGradient>(k)) return s;
  if (!k.has("bias")) return Status::success();
  const int64_t elements = k.elements(), channels = k.call["bias"].elements();
  const int64_t batch = k.call.get_int("channels_last") ? elements / channels : k.out_shape("y")[0];
  cpu::add_channel_bias(k.out<float>("y"), k.in<float>("bias"), batch, channels, elements / (batch * channels));
  return Status::success();
}

bool accepts_conv(const OpCall& call, llvm::ArrayRef<Type> results) {
  if (!all_f32(call, results)) return false;
  for (size_t i = 0; i < 2; ++i)
    if (call.operand(i).elements() == 0) return false;
  return results[0].elements() != 0;
}

template <ConvPass pass>
constexpr CpuKernel onednn(const OpDef& op, CpuKernel::LaunchFn launch_it = launch<pass>) {
  return {op, "onednn", accepts_conv, launch_it, workspace<pass>, prepare<pass>};
}

constexpr CpuKernel conv_table[] = {
    onednn<ConvPass::Forward>(op_conv),
    onednn<ConvPass::InputGradient>(op_conv_dx),
    onednn<ConvPass::WeightGradient>(op_conv_dw),
    onednn<ConvPass::InputGradient>(op_conv_transpose, launch_conv_transpose),
};

}  // namespace

llvm::ArrayRef<CpuKernel> conv_kernels() { return conv_table; }

}  // namespace plimsoll
