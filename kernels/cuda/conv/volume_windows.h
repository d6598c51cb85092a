#pragma once

// How depthwise convolutions over volumes divide their work where windows of planes are products on the matrix units.
// No CUDA here: plans are made where there is none.

#include "kernels/cuda/conv/volume_columns.h"

namespace plimsoll::cuda {

// A block has 64 channels, of which a warp has a unit of 8, and windows of 8 x 8 pixels of a column, one or two beside
// each other. Of a window those in the middle are results, and those at an edge of the plane as well: beyond it lie
// zeros. A line in shared memory has an odd number of pixels, so that threads that read at once are at different banks.
struct VolumeWindowPlan : VolumeColumnPlan {
  static constexpr int side = 8, step = side - taps + 1, units = 8, most_windows = 2, all_taps = taps * taps * taps;
  static constexpr int warps = units, computing_threads = warps * 32, threads = computing_threads + 128;
  static constexpr int box_channels = units * unit, pixel_bytes = 2 * box_channels, border_bytes = 1024;

  int windows;                  // of a block's line
  int first_place, last_place;  // of results in the first window and in the last one
  int first_pixel;              // of the first window, which may lie before the line
  int box_pixels;               // of a line that the windows are of
  uint32_t all_bytes = 0x3210;  // a selector of PRMT

  // Of a window, whether it is a result, which is none of a window beside it.
  constexpr bool has_result(int window, int place) const {
    return window < windows && place >= (window == 0 ? first_place : 1) &&
           place <= (window == windows - 1 ? last_place : side - 2) && column_of(window, place) < width;
  }
  constexpr int column_of(int window, int place) const { return window * step + place - first_place; }
  constexpr bool valid() const { return stages >= 2; }
  constexpr int box_lines() const { return lines + taps - 1; }

 protected:
  // Of lines of so many results under `pixels`; a block has `block_windows` of each, or all where that is 0. first: of
  // the pixels under the first result.
  VolumeWindowPlan(int channels, int block_windows, int results, int down, int pixels, int first)
      : VolumeColumnPlan(channels, box_channels, results, block_windows > 0 ? block_windows * step : results) {
    if (block_windows > 0) {
      windows = block_windows;
      first_place = 1, last_place = side - 2;
    } else {
      first_place = first < 0 ? 0 : 1;
      last_place = results + first >= pixels - 1 ? side - 1 : side - 2;
      windows = static_cast<int>(divide_up(std::max(results - 1 + first_place - last_place, 0), step)) + 1;
    }
    first_pixel = first + 1 - first_place;
    box_pixels = odd((windows - 1) * step + side);
    lines = static_cast<int>(divide_up(down, divide_up(down, side)));
  }
  static constexpr int odd(int count) { return count | 1; }
};

// conv and conv_dx.
struct VolumeWindows : VolumeWindowPlan {
  static constexpr int most_stages = 6, result_stages = 3;

  int in[3], out[3], first[3];  // first: of the pixels under the first result
  int result_pixels;            // of a line in shared memory
  int in_bytes, stage_bytes, result_bytes;

  VolumeWindows(const DepthwiseVolumeSizes& c, bool gradient, int block_windows)
      : VolumeWindowPlan(c.channels, block_windows, gradient ? c.x[2] : c.y[2], gradient ? c.x[1] : c.y[1],
                         gradient ? c.y[2] : c.x[2], first_of(c, gradient, 2)) {
    for (int d = 0; d < 3; ++d) {
      in[d] = gradient ? c.y[d] : c.x[d];
      out[d] = gradient ? c.x[d] : c.y[d];
      first[d] = first_of(c, gradient, d);
    }
    result_pixels = across > 1 ? width : odd(width);
    in_bytes = box_lines() * box_pixels * pixel_bytes;
    stage_bytes = rounded(in_bytes, border_bytes);
    result_bytes = rounded(int64_t{lines} * result_pixels * pixel_bytes, border_bytes);
    if (windows > most_windows) return;
    const int64_t left = most_shared_bytes - other_bytes() - result_stages * (int64_t{result_bytes} + 16);
    stages = static_cast<int>(std::clamp<int64_t>(left / (stage_bytes + 16), 0, most_stages));
    share_columns(c.batch, out[1], out[0]);
  }
  int64_t shared_bytes() const {
    return other_bytes() + int64_t{stages} * (stage_bytes + 16) + result_stages * (int64_t{result_bytes} + 16);
  }
  constexpr int64_t steps() const { return plane_steps(out[0], taps - 1); }

 private:
  // Weights and biases of a block.
  static constexpr int64_t other_bytes() { return border_bytes + box_channels * (2 * all_taps + 4); }
  static constexpr int first_of(const DepthwiseVolumeSizes& c, bool gradient, int d) {
    return gradient ? c.pad[d] - taps + 1 : -c.pad[d];
  }
};

// conv_dw: windows of x, and dy in place of results. A block goes down planes of x and keeps the three planes of dy
// that each of them meets.
struct VolumeWindowWeights : VolumeWindowPlan {
  static constexpr int few_dy_stages = taps + 1, most_dy_stages = 6, most_x_stages = 4;

  int pad[3], x[3], dy[3];
  int dy_pixels;  // of a line in shared memory
  int x_bytes, dy_bytes, x_stage_bytes, dy_stage_bytes, dy_stages = 0;

  VolumeWindowWeights(const DepthwiseVolumeSizes& c, int block_windows)
      : VolumeWindowPlan(c.channels, block_windows, c.y[2], c.y[1], c.x[2], -c.pad[2]) {
    for (int d = 0; d < 3; ++d) pad[d] = c.pad[d], x[d] = c.x[d], dy[d] = c.y[d];
    dy_pixels = odd(width);
    x_bytes = box_lines() * box_pixels * pixel_bytes;
    dy_bytes = lines * dy_pixels * pixel_bytes;
    x_stage_bytes = rounded(int64_t{side + taps - 1} * box_pixels * pixel_bytes, border_bytes);
    dy_stage_bytes = rounded(int64_t{side} * dy_pixels * pixel_bytes, border_bytes);
    const auto fits = [&](int of_x, int of_dy) {
      return of_x * (int64_t{x_stage_bytes} + 16) + of_dy * (int64_t{dy_stage_bytes} + 16) <=
             most_shared_bytes - border_bytes;
    };
    if (windows > most_windows || !fits(2, few_dy_stages)) return;
    stages = 2, dy_stages = few_dy_stages;
    while (true) {
      if (dy_stages < most_dy_stages && dy_stages - taps < stages && fits(stages, dy_stages + 1))
        ++dy_stages;
      else if (stages < most_x_stages && fits(stages + 1, dy_stages))
        ++stages;
      else
        break;
    }
    share_columns(c.batch, dy[1], x[0]);
  }
  // Sums of all columns of a window lie there in the end.
  int64_t shared_bytes() const {
    constexpr int64_t sums = int64_t{box_channels} * all_taps * side * 4;
    const int64_t planes = int64_t{stages} * (x_stage_bytes + 16) + int64_t{dy_stages} * (dy_stage_bytes + 16);
    return border_bytes + std::max(planes, sums);
  }
  constexpr int64_t workspace_bytes(const DepthwiseVolumeSizes& c) const { return splits * c.weights() * 4; }
  constexpr int64_t steps() const { return plane_steps(x[0], 0); }
};

// Of the ways to divide lines the one with which the busiest block takes the least time: a plane takes as long as a
// quarter of a window beside its windows.
template <typename Plan, typename... Of>
Plan choose_volume_windows(const Of&... of) {
  const auto cost = [](const Plan& p) { return p.steps() * (1 + 4 * p.windows); };
  Plan best(of..., 0);
  for (int windows = VolumeWindowPlan::most_windows; windows > 0; --windows) {
    const Plan other(of..., windows);
    if (other.valid() && (!best.valid() || cost(other) < cost(best))) best = other;
  }
  return best;
}

// 3 x 3 x 3 taps of 16-bit floats without strides, of whole units of 8 channels, padded by no more than two pixels.
inline bool fits_volume_window_taps(const DepthwiseVolumeSizes& c) {
  for (int d = 0; d < 3; ++d)
    if (c.kernel[d] != VolumeWindowPlan::taps || c.stride[d] != 1 || c.pad[d] < 0 || c.pad[d] >= VolumeWindowPlan::taps)
      return false;
  return c.channels % VolumeWindowPlan::unit == 0;
}
inline bool fits_volume_windows(const DepthwiseVolumeSizes& c, bool gradient) {
  if (!fits_volume_window_taps(c)) return false;
  const auto p = choose_volume_windows<VolumeWindows>(c, gradient);
  return p.valid() && p.columns() * p.out[0] < VolumeColumnPlan::most_planes;
}
inline bool fits_volume_window_weights(const DepthwiseVolumeSizes& c) {
  if (!fits_volume_window_taps(c)) return false;
  const auto p = choose_volume_windows<VolumeWindowWeights>(c);
  return p.valid() && p.columns() * p.x[0] < VolumeColumnPlan::most_planes;
}

}  // namespace plimsoll::cuda
