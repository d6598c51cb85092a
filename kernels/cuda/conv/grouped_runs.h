#pragma once

// How convolutions of groups, and their input gradients, divide their work on Hopper. No CUDA here: plans are made
// where there is none.

#include "kernels/cuda/conv/joined_groups.h"

#include <cstdlib>
#include <utility>

namespace plimsoll::cuda {

// Blocks keep the weights of some groups and take turns of the tiles, which some warps copy while warpgroups multiply
// those before. A plane of a tile holds one unit of channels: the rows that a tap meets are the plane's, moved by the
// tap's distance. A product's terms are two units of taps and channels at a time.
struct GroupedRuns {
  static constexpr int warpgroups = 4, copying_warps = 4, threads = 128 * warpgroups + 32 * copying_warps;
  static constexpr int run_rows = 64;  // positions of one product
  static constexpr int min_stages = 2, max_stages = 4, max_pairs = 256, name_units = 32, no_term = 0xffff;
  static constexpr int64_t max_block_units = 14'400;  // 230,400 bytes: one block a multiprocessor of Hopper

  struct OutClass {
    int of[2], first_pair, end_pair;
  };

  ImageRuns runs;
  int in_channels, out_channels, taps, groups, joined;  // channels of a group
  int in_word_bytes, out_word_bytes;
  int in_units, out_parts, out_units;  // units of channels of a group; blocks make one of several parts of the results
  int block_groups, group_blocks, tile, stages;
  int classes = 0, pairs = 0;  // of out pixels; of units of terms, of all classes
  int group_units = 0, stage_units = 0, weight_units = 0;
  int64_t items = 0, splits = 0;
  OutClass out_classes[ImageRuns::max_planes];
  uint32_t pair_at[max_pairs];  // the first unit of a pair's first term, and 16 bits higher the distance of its second
  uint16_t term_of[2 * max_pairs];  // tap * name_units + unit of channels, or none: a weight of zero

  GroupedRuns(const ConvolutionSizes& c, bool gradient) : GroupedRuns(JoinedGroups(c), gradient) {}
  GroupedRuns(const JoinedGroups& of, bool gradient)
      : runs(of.sizes, gradient),
        in_channels(gradient ? of.sizes.y_channels : of.sizes.x_channels),
        out_channels(gradient ? of.sizes.x_channels : of.sizes.y_channels),
        taps(of.sizes.taps()),
        groups(of.sizes.groups),
        joined(of.count),
        in_word_bytes(word_bytes_of(in_channels)),
        out_word_bytes(word_bytes_of(out_channels)),
        in_units(static_cast<int>(divide_up(in_channels, unit_channels))) {
    const auto units = static_cast<int>(divide_up(out_channels, unit_channels));
    // As many parts as let the weights of one and two stages fit.
    for (out_units = static_cast<int>(divide_up(units, divide_up(units, max_unit_tiles)));; --out_units) {
      out_parts = static_cast<int>(divide_up(units, out_units));
      const int most_groups = groups_beside(groups, std::max(in_units, out_units));
      if (choose_tile(of.sizes, gradient, most_groups)) return;
      if (most_groups > 1 && choose_tile(of.sizes, gradient, 1)) return;
      divide(of.sizes, gradient, 1, min_tile);
      if (stages >= min_stages || out_units == 1) return;
    }
  }

  int64_t blocks() const { return splits * group_blocks * out_parts; }
  int64_t shared_units() const { return fixed_units() + int64_t{stages} * stage_units; }
  // Where the results of a tile's positions go, behind the tile's planes.
  constexpr int places_at() const { return block_groups * group_units; }
  constexpr int staged_units() const { return 16 * odd_units(out_units); }  // of a warp
  // Products of 64 x 64 x 16 terms that take as long. Matrix units wait for the rows of both operands: 64 positions and
  // the columns of a group.
  double whole_products() const {
    const double rows_share = (run_rows + out_units * unit_channels) / (2.0 * run_rows);
    return static_cast<double>(items * (tile / run_rows) * groups * out_parts * pairs) * rows_share;
  }

 private:
  static constexpr int64_t wanted_blocks = 132;  // multiprocessors of an H200

  static constexpr int64_t tile_cost = 400;  // what a tile takes besides, as units that are copied
  static constexpr int min_tile = run_rows, max_tile = 256;

  // The tile with which a block moves the fewest units, where three stages fit.
  bool choose_tile(const ConvolutionSizes& c, bool gradient, int groups_of_block) {
    int best = 0;
    int64_t least = 0;
    for (int size = max_tile; size >= min_tile; size /= 2) {
      divide(c, gradient, groups_of_block, size);
      if (stages < 3) continue;
      const int64_t of_tile = stage_units + int64_t{block_groups} * out_units * classes * tile + tile_cost;
      const int64_t cost = divide_up(items, splits) * of_tile;
      if (best != 0 && cost >= least) continue;
      best = size;
      least = cost;
    }
    if (best != 0) divide(c, gradient, groups_of_block, best);
    return best != 0;
  }
  // Groups of up to 72 channels that a block takes, none of them in vain.
  static int groups_beside(int groups, int units) {
    int count = std::min(groups, 9 / units);
    while (count > 1 && groups % count != 0) --count;
    return std::max(count, 1);
  }
  int64_t fixed_units() const {
    return int64_t{block_groups} * weight_units + int64_t{warpgroups} * 4 * staged_units();
  }
  void divide(const ConvolutionSizes& c, bool gradient, int groups_of_block, int positions) {
    block_groups = groups_of_block;
    group_blocks = static_cast<int>(divide_up(groups, block_groups));
    tile = positions;
    const int64_t units = runs.lay_out(c, gradient, tile, in_units);
    stages = 0;
    if (block_groups * units > max_block_units) return;
    group_units = odd_units(units);
    stage_units = places_at() + tile / 2;
    classes = pairs = 0;
    if (!list_terms(c, gradient)) return;
    weight_units = 2 * pairs * out_units * unit_channels;
    stages = static_cast<int>(std::clamp<int64_t>((max_block_units - fixed_units()) / stage_units, 0, max_stages));
    items = divide_up(runs.batch * runs.image_positions, tile);
    splits = std::clamp<int64_t>(wanted_blocks / (group_blocks * out_parts), 1, std::max<int64_t>(items, 1));
    splits = divide_up(items, std::max<int64_t>(1, divide_up(items, splits)));
  }
  // Of every class of out pixels, by unit of channels, then by tap; false where they are too many.
  bool list_terms(const ConvolutionSizes& c, bool gradient) {
    for (int down = 0; down < runs.axes[0].out_classes; ++down)
      for (int across = 0; across < runs.axes[1].out_classes; ++across) {
        OutClass& of = out_classes[classes++];
        of = {{down, across}, pairs, pairs};
        int terms = 0;
        for (int i = 0; i < in_units * taps; ++i) {
          const int unit = i / taps, tap = i - unit * taps;
          const RunTap of_row = RunAxis::tap(c, gradient, 0, tap / c.kernel[1]);
          const RunTap of_column = RunAxis::tap(c, gradient, 1, tap % c.kernel[1]);
          if (of_row.out_class != down || of_column.out_class != across) continue;
          if (!add_term(terms++, runs.unit_of(of_row, of_column, unit), tap * name_units + unit)) return false;
        }
        // A class that no tap reaches is a product with zeros.
        if (terms == 0 && !add_term(0, 0, no_term)) return false;
        of.end_pair = pairs;
      }
    return true;
  }
  // The second term of a pair is never the nearer one.
  bool add_term(int index, int at, int name) {
    if (index % 2 == 0) {
      if (pairs == max_pairs) return false;
      pair_at[pairs] = static_cast<uint32_t>(at);
      term_of[2 * pairs] = static_cast<uint16_t>(name);
      term_of[2 * pairs + 1] = no_term;
      ++pairs;
      return true;
    }
    uint32_t& pair = pair_at[pairs - 1];
    uint16_t* terms = term_of + 2 * (pairs - 1);
    const int first = static_cast<int>(pair);
    terms[1] = static_cast<uint16_t>(name);
    if (at < first) std::swap(terms[0], terms[1]);
    pair = static_cast<uint32_t>(std::min(at, first)) | static_cast<uint32_t>(std::abs(at - first)) << 16;
    return true;
  }
};

// 16-bit floats in groups of whole units of channels, or of few that are joined; or without groups any channels but a
// few.
inline bool fits_grouped_runs(const ConvolutionSizes& of_tensors, bool gradient) {
  const JoinedGroups joined(of_tensors);
  const ConvolutionSizes& c = joined.sizes;
  if (!fits_runs_of_channels(joined)) return false;
  const GroupedRuns p(joined, gradient);
  return p.stages >= GroupedRuns::min_stages && fits_in_counts(c, p.runs) && p.blocks() < (int64_t{1} << 31);
}

}  // namespace plimsoll::cuda
