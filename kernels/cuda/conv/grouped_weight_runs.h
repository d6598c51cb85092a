#pragma once

// How weight gradients of groups divide their work on Hopper. No CUDA here: plans are made where there is none.

#include "kernels/cuda/conv/joined_groups.h"

namespace plimsoll::cuda {

// A product is of 64 channels of dy by up to 64 of x at one tap, summed over the positions of a tile; where these are
// several groups, what different groups have in common is computed in vain. Every warpgroup has some of the taps. Tiles
// hold planes of one unit of channels each, of dy first, and some warps copy them while the others multiply those
// before. Blocks take turns of the tiles; their sums are added up behind them.
struct GroupedWeightRuns {
  static constexpr int warpgroups = 3, copying_warps = 4, threads = 128 * warpgroups + 32 * copying_warps;
  static constexpr int warpgroup_taps = 3, block_taps = warpgroups * warpgroup_taps;
  static constexpr int product_units = 8;  // units of 8 channels of dy
  static constexpr int max_stages = 4, min_stages = 3;
  static constexpr int64_t max_block_units = 14'400;  // 230,400 bytes: one block a multiprocessor of Hopper

  ImageRuns runs;
  int x_channels, y_channels, taps, groups, joined;  // channels of a group
  int x_word_bytes, y_word_bytes;
  int x_parts = 1, y_parts = 1, x_units, y_units;  // blocks take one of several parts of a group: units of its channels
  int block_groups, group_blocks, tap_parts;
  int tile = 0, stages = 0, dy_plane_units = 0, x_at = 0, stage_units = 0;
  int64_t items = 0, splits = 0;

  explicit GroupedWeightRuns(const ConvolutionSizes& c) : GroupedWeightRuns(JoinedGroups(c)) {}
  explicit GroupedWeightRuns(const JoinedGroups& of)
      : runs(of.sizes, false),
        x_channels(of.sizes.x_channels),
        y_channels(of.sizes.y_channels),
        taps(of.sizes.taps()),
        groups(of.sizes.groups),
        joined(of.count),
        x_word_bytes(word_bytes_of(x_channels)),
        y_word_bytes(word_bytes_of(y_channels)),
        x_units(divide_channels(x_channels, x_parts)),
        y_units(divide_channels(y_channels, y_parts)),
        block_groups(std::clamp(product_units / std::max({x_units, y_units, 1}), 1, groups)),
        group_blocks(static_cast<int>(divide_up(groups, block_groups))),
        tap_parts(static_cast<int>(divide_up(taps, block_taps))) {
    const ConvolutionSizes& c = of.sizes;
    // The tile with which a block moves the fewest units.
    int best = min_tile;
    int64_t least = 0;
    for (int size = max_tile; size >= min_tile; size /= 2) {
      divide(c, size);
      if (stages < min_stages) continue;
      const int64_t cost = divide_up(items, splits) * (stage_units + tile_cost);
      if (least != 0 && cost >= least) continue;
      best = size;
      least = cost;
    }
    divide(c, best);
  }

  int64_t blocks() const { return splits * keys(); }
  int64_t shared_units() const { return int64_t{stages} * stage_units + spare_units(); }
  int64_t workspace_bytes(const ConvolutionSizes& c) const { return splits * c.weights() * 4; }
  // Products of 64 x 64 x 16 terms that take as long. Matrix units wait for the rows of both operands.
  double whole_products() const {
    const double rows_share = (product_units + block_groups * x_units) / (2.0 * product_units);
    return static_cast<double>(items * (tile / 16) * keys() * block_taps) * rows_share;
  }

 private:
  static constexpr int64_t wanted_blocks = 132;  // multiprocessors of an H200
  static constexpr int64_t tile_cost = 400;      // what a tile takes besides, as units that are copied
  static constexpr int min_tile = 64, max_tile = 256;

  // Units of channels of a part.
  static int divide_channels(int channels, int& parts) {
    const auto units = static_cast<int>(divide_up(channels, unit_channels));
    parts = static_cast<int>(divide_up(units, product_units));
    return static_cast<int>(divide_up(units, parts));
  }
  // What blocks do of each tile.
  int64_t keys() const { return int64_t{group_blocks} * tap_parts * x_parts * y_parts; }
  // A product reads planes behind those of a few channels, and may not leave the block's memory.
  int64_t spare_units() const { return std::max<int64_t>(0, int64_t{product_units} * dy_plane_units - stage_units); }
  void divide(const ConvolutionSizes& c, int positions) {
    tile = positions;
    dy_plane_units = odd_units(tile);
    x_at = block_groups * y_units * dy_plane_units;
    const int64_t units = x_at + runs.lay_out(c, false, tile, block_groups * x_units);
    stages = 0;
    if (units > max_block_units) return;
    stage_units = static_cast<int>(units);
    stages = static_cast<int>(std::min<int64_t>((max_block_units - spare_units()) / stage_units, max_stages));
    items = divide_up(runs.batch * runs.image_positions, tile);
    splits = std::clamp<int64_t>(wanted_blocks / keys(), 1, std::max<int64_t>(items, 1));
    splits = divide_up(items, std::max<int64_t>(1, divide_up(items, splits)));
  }
};

// 16-bit floats in groups of whole units of channels, or of few that are joined; or without groups any channels but a
// few.
inline bool fits_grouped_weight_runs(const ConvolutionSizes& of_tensors) {
  const JoinedGroups joined(of_tensors);
  const ConvolutionSizes& c = joined.sizes;
  if (!fits_runs_of_channels(joined)) return false;
  const GroupedWeightRuns p(joined);
  return p.stages >= GroupedWeightRuns::min_stages && fits_in_counts(c, p.runs) && p.blocks() < (int64_t{1} << 31);
}

}  // namespace plimsoll::cuda
