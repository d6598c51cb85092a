#include "runtime/kernels/plane_taps_conv.h"

#include "kernels/cuda/conv/plane_taps_convolution.h"
#include "runtime/cuda/backend/launcher.h"

// Our own convolutions over volumes of one channel whose taps lie in planes.

namespace plimsoll {
namespace {

cuda::PlaneTaps sizes_of(ConvPass pass, const CudaCall& k) { return *plane_taps_sizes(pass, k.call, k.result_types()); }

Status launch(const CudaCall& k) {
  return launched(k, cuda::plane_taps(k.in_scalar("x"), k.out("y"), k.in("x"), k.in("w"), k.in("bias"),
                                      sizes_of(ConvPass::Forward, k), k.stream));
}

Status launch_dx(const CudaCall& k) {
  return launched(k, cuda::plane_taps_dx(k.in_scalar("dy"), k.out("dx"), k.in("dy"), k.in("w"),
                                         sizes_of(ConvPass::InputGradient, k), k.stream));
}

Status launch_dw(const CudaCall& k) {
  return launched(k, cuda::plane_taps_dw(k.in_scalar("x"), k.out_scalar("dw"), k.out("dw"), k.in("x"), k.in("dy"),
                                         sizes_of(ConvPass::WeightGradient, k), k.scratch<float>(), k.stream));
}

constexpr CudaLauncher plane_taps_table[] = {
    {op_conv, "plane_taps", launch},
    {op_conv_dx, "plane_taps", launch_dx},
    {op_conv_dw, "plane_taps", launch_dw},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> plane_taps_launchers() { return plane_taps_table; }

}  // namespace plimsoll
