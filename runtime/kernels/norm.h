#pragma once

#include "kernels/cuda/common/partials.h"
#include "runtime/kernels/cuda_candidate.h"
#include "runtime/kernels/kernel_call.h"

namespace plimsoll {

// x as rows that are normalised each by itself.
struct NormRows {
  int64_t count, width;
  explicit NormRows(const OpCall& call);
};

// x as [batch, channels, inner], or [batch, inner, channels].
cuda::ChannelShape channels_of(const OpCall& call);

inline float eps_of(const OpCall& call) { return static_cast<float>(call.get_float("eps")); }

namespace kernel {
extern const CudaCandidate layer_norm_rows, layer_norm_grad_rows, rms_norm_rows, rms_norm_grad_rows,
    batch_norm_channels, batch_norm_grad_channels, batch_norm_inference_channels, group_norm_groups,
    group_norm_grad_groups, lrn_elements, lrn_grad_elements;
}

inline constexpr const CudaCandidate* norm_candidates[] = {&kernel::layer_norm_rows,
                                                           &kernel::layer_norm_grad_rows,
                                                           &kernel::rms_norm_rows,
                                                           &kernel::rms_norm_grad_rows,
                                                           &kernel::batch_norm_channels,
                                                           &kernel::batch_norm_grad_channels,
                                                           &kernel::batch_norm_inference_channels,
                                                           &kernel::group_norm_groups,
                                                           &kernel::group_norm_grad_groups,
                                                           &kernel::lrn_elements,
                                                           &kernel::lrn_grad_elements};

}  // namespace plimsoll
