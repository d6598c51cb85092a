#pragma once

// How depthwise convolutions over volumes divide their work. No CUDA here: plans are made where there is none.

#include "kernels/division.h"

#include <algorithm>
#include <cstdint>

namespace plimsoll::cuda {

// x [batch, x.., channels], w [channels, kernel..] and y [batch, y.., channels]. Arrays are depth, down, across.
struct DepthwiseVolumeSizes {
  int64_t batch = 1;
  int x[3] = {1, 1, 1}, y[3] = {1, 1, 1}, kernel[3] = {1, 1, 1};
  int stride[3] = {1, 1, 1}, pad[3] = {0, 0, 0};  // pad: before the first voxel
  int channels = 1;

  constexpr int taps() const { return kernel[0] * kernel[1] * kernel[2]; }
  constexpr int64_t weights() const { return int64_t{channels} * taps(); }
};

// From a result to the one beside it in a plane: one input pixel on, two, or half a one.
enum class VolumeSteps : uint8_t { One, Two, Half };

// What a thread makes of a plane. Taps are 3 x 3 or 5 x 5, of which those behind the kernel's are zeros. Of Half a
// thread has windows of 2 x 2 results, which have the same input pixels.
struct VolumeTile {
  int taps = 3;
  VolumeSteps steps = VolumeSteps::One;
  bool holds_taps = false;  // a tile of dy, of a thread that has the sums of three planes of taps

  constexpr int stride() const { return steps == VolumeSteps::Two ? 2 : 1; }
  constexpr int window() const { return steps == VolumeSteps::Half ? 2 : 1; }
  constexpr int made_down() const {  // results
    if (holds_taps) return 1;
    if (steps == VolumeSteps::Two) return taps == 3 ? 2 : 1;
    return steps == VolumeSteps::Half && taps == 3 ? 4 : 2;
  }
  constexpr int made_across() const { return holds_taps && steps == VolumeSteps::One ? 7 : 4; }
  constexpr int window_taps() const { return (taps + window() - 1) / window(); }
  constexpr int span(int made) const { return (made / window() - 1) * stride() + window_taps(); }
  constexpr int read_down() const { return span(made_down()); }  // input pixels
  constexpr int read_across() const { return span(made_across()); }
};

// Lanes of channels, and rectangles of tiles that a block has in each plane.
struct DepthwiseVolumePlan {
  static constexpr int max_vector_threads = 32, max_taps = 5, ring_taps = 3, warp = 32;

  int length, vectors, vector_threads, vector_blocks;  // channels of a thread; their vectors, of a block, and blocks
  VolumeTile tile;
  bool keeps_planes;             // three planes stay in registers, so that a thread reads each of them once
  int first_window[2] = {};      // of Half: windows before the first result's
  int down, across;              // rectangles
  int block_down, block_across;  // tiles of one
  int parts = 1, part_planes;    // ranges of planes
  int64_t rectangles;            // of all images and parts

  constexpr int block_tiles() const { return block_down * block_across; }
  // Planes of input that a thread goes through for a part, `depth_taps` times each where it keeps none.
  constexpr int64_t part_steps(int depth_taps) const {
    if (!keeps_planes) return int64_t{part_planes} * depth_taps;
    return part_planes + (tile.steps == VolumeSteps::Half ? 0 : ring_taps - 1);
  }
  constexpr int threads() const { return static_cast<int>(round_up(int64_t{vector_threads} * block_tiles(), warp)); }

  DepthwiseVolumePlan(const DepthwiseVolumeSizes& c, VolumeSteps steps, bool of_weights, const int (&made)[3],
                      int max_threads, int64_t resident_blocks) {
    length = c.channels % 2 == 0 ? 2 : 1;
    vectors = c.channels / length;
    vector_blocks = static_cast<int>(divide_up(vectors, max_vector_threads));
    vector_threads = static_cast<int>(divide_up(vectors, vector_blocks));
    tile.taps = std::max(c.kernel[1], c.kernel[2]) <= ring_taps ? ring_taps : max_taps;
    tile.steps = steps;
    keeps_planes = tile.taps == ring_taps && c.kernel[0] <= ring_taps && c.stride[0] == 1;
    tile.holds_taps = of_weights && keeps_planes;
    int windows[2];
    for (int d = 0; d < 2; ++d) {
      if (steps == VolumeSteps::Half) first_window[d] = c.pad[d + 1] / tile.window();
      const int last = (made[d + 1] - 1 + (steps == VolumeSteps::Half ? c.pad[d + 1] : 0)) / tile.window();
      windows[d] = last - first_window[d] + 1;
    }
    choose_rectangle(static_cast<int>(divide_up(windows[0], tile.made_down() / tile.window())),
                     static_cast<int>(divide_up(windows[1], tile.made_across() / tile.window())),
                     max_threads / vector_threads);
    choose_parts(made[0], c.batch * down * across * vector_blocks, resident_blocks);
    rectangles = c.batch * parts * down * across;
  }

 private:
  // With few threads without work, and few input pixels read by two blocks.
  void choose_rectangle(int tiles_down, int tiles_across, int max_tiles) {
    int64_t least = INT64_MAX;
    for (int beside = 1; beside <= std::min(max_tiles, tiles_across); ++beside)
      for (int below = 1; below <= std::min(max_tiles / beside, tiles_down); ++below) {
        const int64_t count = divide_up(tiles_down, below) * divide_up(tiles_across, beside);
        const int64_t lanes = round_up(int64_t{vector_threads} * below * beside, warp);
        const int64_t read = int64_t{tile.span(tile.made_down() * below)} * tile.span(tile.made_across() * beside);
        constexpr int of_result = 3;  // beside an input pixel
        const int64_t cost =
            count * (of_result * tile.made_down() * tile.made_across() * lanes + read * vector_threads);
        if (cost >= least) continue;
        least = cost;
        block_down = below, block_across = beside;
      }
    down = static_cast<int>(divide_up(tiles_down, block_down));
    across = static_cast<int>(divide_up(tiles_across, block_across));
  }
  // A part reads input planes that its neighbours read as well.
  void choose_parts(int planes, int64_t blocks, int64_t resident_blocks) {
    const int halo = keeps_planes ? ring_taps - 1 : 1;
    int64_t least = INT64_MAX;
    for (int count = 1; count <= planes; ++count) {
      const int64_t of_part = divide_up(planes, count), waves = divide_up(blocks * count, resident_blocks);
      if (waves * (of_part + halo) >= least) continue;
      least = waves * (of_part + halo);
      parts = count, part_planes = static_cast<int>(of_part);
    }
    parts = static_cast<int>(divide_up(planes, part_planes));
  }
};

// y and dx.
struct DepthwiseVolumes : DepthwiseVolumePlan {
  static constexpr int max_threads = 256, max_depth_taps = 7;
  static constexpr int64_t resident_blocks = 264;

  bool gradient;
  int in[3], out[3], first[3];    // first: of the pixels under the first result
  int out_step, tap_step, every;  // in depth result z is made of planes (z * out_step + first + tap * tap_step) / every

  DepthwiseVolumes(const DepthwiseVolumeSizes& c, bool gradient)
      : DepthwiseVolumePlan(c, steps_of(c, gradient), false, gradient ? c.x : c.y, max_threads, resident_blocks),
        gradient(gradient) {
    for (int d = 0; d < 3; ++d) {
      in[d] = gradient ? c.y[d] : c.x[d];
      out[d] = gradient ? c.x[d] : c.y[d];
      first[d] = gradient ? c.pad[d] - c.kernel[d] + 1 : -c.pad[d];
    }
    out_step = gradient ? 1 : c.stride[0], tap_step = 1, every = 1;
    if (gradient && c.stride[0] != 1) first[0] = c.pad[0], tap_step = -1, every = c.stride[0];
  }
  // Taps come from the last one on.
  constexpr bool turns_depth() const { return gradient && every == 1; }
  constexpr bool turns_planes() const { return gradient && tile.steps == VolumeSteps::One; }
  constexpr int64_t blocks() const { return rectangles * vector_blocks; }
  static constexpr VolumeSteps steps_of(const DepthwiseVolumeSizes& c, bool gradient) {
    if (c.stride[1] == 1) return VolumeSteps::One;
    return gradient ? VolumeSteps::Half : VolumeSteps::Two;
  }
};

// dw: a thread has the sums of all taps, or of those of one plane. Blocks leave parts, which are added up.
struct DepthwiseVolumeWeights : DepthwiseVolumePlan {
  static constexpr int max_threads = 192;
  static constexpr int64_t resident_blocks = 264;

  int depth_blocks;  // planes of taps
  int64_t splits;

  explicit DepthwiseVolumeWeights(const DepthwiseVolumeSizes& c)
      : DepthwiseVolumePlan(c, c.stride[1] == 1 ? VolumeSteps::One : VolumeSteps::Two, true, c.y, max_threads,
                            resident_blocks) {
    depth_blocks = keeps_planes ? 1 : c.kernel[0];
    splits = std::clamp<int64_t>(resident_blocks / (int64_t{vector_blocks} * depth_blocks), 1, rectangles);
    splits = divide_up(rectangles, divide_up(rectangles, splits));
  }
  constexpr int64_t blocks() const { return splits * vector_blocks * depth_blocks; }
  constexpr int64_t workspace_bytes(const DepthwiseVolumeSizes& c) const { return splits * c.weights() * 4; }
};

// Up to 7 x 5 x 5 taps, with strides of 1 or 2 in planes. Counts are 32 bits wide, and bytes of a plane.
inline bool fits_depthwise_volumes(const DepthwiseVolumeSizes& c) {
  constexpr int64_t most = int64_t{1} << 30, most_of_plane = int64_t{1} << 28;
  constexpr int max_stride = 4, max_pad = 64;
  if (c.channels < 2 || c.stride[1] != c.stride[2] || c.stride[1] > 2 || c.stride[0] > max_stride) return false;
  if (c.kernel[0] > DepthwiseVolumes::max_depth_taps || std::max(c.kernel[1], c.kernel[2]) > DepthwiseVolumes::max_taps)
    return false;
  for (int d = 0; d < 3; ++d)
    if (c.pad[d] < 0 || c.pad[d] > max_pad) return false;
  for (const auto& size : {c.x, c.y})
    if (int64_t{size[1]} * size[2] * c.channels > most_of_plane || size[0] > most_of_plane ||
        c.batch * size[0] * size[1] * size[2] > most)
      return false;
  return true;
}

}  // namespace plimsoll::cuda
