#pragma once

// A convolution with wide dilations as one with narrower ones, over the phases of x and y: pixels that a dilation which
// `step` divides keeps apart lie beside each other in a phase, and the phases are images of a larger batch. cuDNN's
// kernels for Hopper know dilations up to 8. No CUDA here: plans are made where there is none.

#include "ir/ops/common/spatial.h"
#include "ir/support/align.h"
#include "kernels/cuda/conv/space_to_batch_sizes.h"

#include <optional>

namespace plimsoll {

struct PhasedConvolution {
  cuda::Phases x, y;    // of one run
  Type x_type, y_type;  // their phases, as cuDNN sees them
  llvm::SmallVector<int64_t, 3> pads_begin, pads_end, dilations;
  int64_t runs = 1;  // equal parts of the batch, so that phases stay small beside what they are made of

  // Of two spatial dimensions with the channels last, which are whole vectors. Nothing where dilations are narrow or
  // not to be divided.
  static std::optional<PhasedConvolution> of(const Attrs& attrs, const Type& x, llvm::ArrayRef<int64_t> w,
                                             llvm::ArrayRef<int64_t> y) {
    const SlidingWindow window = llvm::cantFail(read_window(attrs, w.slice(1, 2)));
    PhasedConvolution phased;
    int64_t all_phases = 1;
    for (size_t d = 0; d < 2; ++d) {
      phased.x.size[d] = x.shape[d + 1];
      phased.y.size[d] = y[d + 1];
      const int64_t step =
          step_of(window.dilations[d], window.pads_begin[d], std::max(phased.x.size[d], phased.y.size[d]));
      if (step == 0 || window.strides[d] != 1) return std::nullopt;
      all_phases *= phased.x.step[d] = phased.y.step[d] = step;
      phased.x.phase_size[d] = (phased.x.size[d] + step - 1) / step;
      phased.y.phase_size[d] = (phased.y.size[d] + step - 1) / step;
      phased.dilations.push_back(window.dilations[d] / step);
      phased.pads_begin.push_back(window.pads_begin[d] / step);
      phased.pads_end.push_back(phased.y.phase_size[d] + phased.dilations[d] * (window.kernel[d] - 1) -
                                phased.pads_begin[d] - phased.x.phase_size[d]);
      if (phased.pads_end[d] < 0) return std::nullopt;
    }
    if (all_phases == 1) return std::nullopt;
    const int64_t batch = x.shape.front();
    for (;; ++phased.runs)
      if (batch % phased.runs == 0 &&
          (phased.set_batch(batch / phased.runs, all_phases, x, y.back()) <= max_bytes || phased.runs == batch))
        return phased;
  }

  // Both phases, x's first, as they lie in a workspace.
  int64_t bytes() const { return align_to_tensor(x_type.bytes()) + align_to_tensor(y_type.bytes()); }

 private:
  static constexpr int64_t widest_dilation = 8, max_bytes = int64_t{256} << 20;

  // Leaves a dilation that is not too wide, and of those the one that leaves the least of a phase empty; 0 where there
  // is none.
  static int64_t step_of(int64_t dilation, int64_t pads, int64_t size) {
    int64_t best = 0, least = 0;
    for (int64_t step = 1; step <= dilation; ++step) {
      if (dilation % step != 0 || pads % step != 0 || dilation / step > widest_dilation) continue;
      if (const int64_t whole = align_up(size, step); best == 0 || whole < least) best = step, least = whole;
    }
    return best;
  }

  int64_t set_batch(int64_t batch, int64_t all_phases, const Type& image, int64_t y_channels) {
    auto set = [&](cuda::Phases& phases, int64_t channels) {
      phases.batch = batch;
      phases.pixel_bytes = channels * dtype_bytes(image.dtype);
      return Type(image.dtype, {batch * all_phases, phases.phase_size[0], phases.phase_size[1], channels});
    };
    x_type = set(x, image.shape.back());
    y_type = set(y, y_channels);
    return bytes();
  }
};

}  // namespace plimsoll
