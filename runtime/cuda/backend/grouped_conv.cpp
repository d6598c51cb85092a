#include "kernels/cuda/conv/depthwise.h"
#include "kernels/cuda/conv/grouped.h"
#include "kernels/cuda/conv/pointwise.h"
#include "runtime/cuda/backend/launcher.h"
#include "runtime/kernels/own_conv.h"

// Our own convolutions of channels in groups, and of few channels without.

namespace plimsoll {
namespace {

template <ConvPass pass>
cuda::ConvolutionSizes sizes_of(const CudaCall& k) {
  return convolution_sizes(k.attrs(), ConvTypes(pass, k));
}

using Forward = cudaError_t (*)(Scalar, void*, const void*, const void*, const void*, const cuda::ConvolutionSizes&,
                                cudaStream_t);
using InputGradient = cudaError_t (*)(Scalar, void*, const void*, const void*, const cuda::ConvolutionSizes&,
                                      cudaStream_t);
using WeightGradient = cudaError_t (*)(Scalar, Scalar, void*, const void*, const void*, const cuda::ConvolutionSizes&,
                                       void*, cudaStream_t);

template <Forward convolve>
Status launch(const CudaCall& k) {
  return launched(k, convolve(k.in_scalar("x"), k.out("y"), k.in("x"), k.in("w"), k.in("bias"),
                              sizes_of<ConvPass::Forward>(k), k.stream));
}
template <InputGradient convolve>
Status launch_dx(const CudaCall& k) {
  return launched(k, convolve(k.in_scalar("dy"), k.out("dx"), k.in("dy"), k.in("w"),
                              sizes_of<ConvPass::InputGradient>(k), k.stream));
}
template <WeightGradient convolve>
Status launch_dw(const CudaCall& k) {
  return launched(k, convolve(k.in_scalar("x"), k.out_scalar("dw"), k.out("dw"), k.in("x"), k.in("dy"),
                              sizes_of<ConvPass::WeightGradient>(k), k.workspace, k.stream));
}

constexpr CudaLauncher grouped_conv_table[] = {
    {op_conv, "grouped_mma", launch<cuda::grouped_convolution>},
    {op_conv_dx, "grouped_mma", launch_dx<cuda::grouped_convolution_dx>},
    {op_conv_dw, "grouped_mma", launch_dw<cuda::grouped_convolution_dw>},
    {op_conv, "grouped_lines", launch<cuda::grouped_lines>},
    {op_conv_dx, "grouped_lines", launch_dx<cuda::grouped_lines_dx>},
    {op_conv_dw, "grouped_lines", launch_dw<cuda::grouped_lines_dw>},
    {op_conv, "grouped_bands", launch<cuda::grouped_bands>},
    {op_conv_dx, "grouped_bands", launch_dx<cuda::grouped_bands_dx>},
    {op_conv_dw, "grouped_bands", launch_dw<cuda::grouped_bands_dw>},
    {op_conv_dx, "grouped_squares", launch_dx<cuda::grouped_squares_dx>},
    {op_conv, "grouped_stationary", launch<cuda::grouped_stationary>},
    {op_conv_dx, "grouped_stationary", launch_dx<cuda::grouped_stationary_dx>},
    {op_conv_dw, "grouped_stationary", launch_dw<cuda::grouped_stationary_dw>},
    {op_conv, "packed_lines", launch<cuda::packed_lines>},
    {op_conv_dx, "packed_lines", launch_dx<cuda::packed_lines_dx>},
    {op_conv_dw, "packed_lines", launch_dw<cuda::packed_lines_dw>},
    {op_conv, "grouped_runs", launch<cuda::grouped_runs>},
    {op_conv_dx, "grouped_runs", launch_dx<cuda::grouped_runs_dx>},
    {op_conv_dw, "grouped_runs", launch_dw<cuda::grouped_runs_dw>},
    {op_conv, "depthwise_images", launch<cuda::depthwise_images>},
    {op_conv_dx, "depthwise_images", launch_dx<cuda::depthwise_images_dx>},
    {op_conv_dw, "depthwise_images", launch_dw<cuda::depthwise_images_dw>},
    {op_conv, "pointwise_chunks", launch<cuda::pointwise_chunks>},
    {op_conv_dx, "pointwise_chunks", launch_dx<cuda::pointwise_chunks_dx>},
    {op_conv_dw, "pointwise_chunks", launch_dw<cuda::pointwise_chunks_dw>},
    {op_conv, "depthwise_sparse", launch<cuda::depthwise_sparse>},
    {op_conv_dx, "depthwise_sparse", launch_dx<cuda::depthwise_sparse_dx>},
    {op_conv_dw, "depthwise_sparse", launch_dw<cuda::depthwise_sparse_dw>},
    {op_conv, "depthwise_pairs", launch<cuda::depthwise_pairs>},
    {op_conv_dx, "depthwise_pairs", launch_dx<cuda::depthwise_pairs_dx>},
    {op_conv_dw, "depthwise_columns", launch_dw<cuda::depthwise_columns_dw>},
    {op_conv_dw, "depthwise_packed", launch_dw<cuda::depthwise_packed_dw>},
    {op_conv, "depthwise_mma", launch<cuda::depthwise_bands>},
    {op_conv_dx, "depthwise_mma", launch_dx<cuda::depthwise_bands_dx>},
    {op_conv_dw, "depthwise_mma", launch_dw<cuda::depthwise_bands_dw>},
    {op_conv, "depthwise_windows", launch<cuda::depthwise_windows>},
    {op_conv_dx, "depthwise_windows", launch_dx<cuda::depthwise_windows_dx>},
    {op_conv_dw, "depthwise_windows", launch_dw<cuda::depthwise_windows_dw>},
    {op_conv, "depthwise_lines", launch<cuda::depthwise_lines>},
    {op_conv_dx, "depthwise_lines", launch_dx<cuda::depthwise_lines_dx>},
    {op_conv_dw, "depthwise_lines", launch_dw<cuda::depthwise_lines_dw>},
    {op_conv, "depthwise", launch<cuda::depthwise>},
    {op_conv_dx, "depthwise", launch_dx<cuda::depthwise_dx>},
    {op_conv_dw, "depthwise", launch_dw<cuda::depthwise_dw>},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> grouped_conv_launchers() { return grouped_conv_table; }

}  // namespace plimsoll
