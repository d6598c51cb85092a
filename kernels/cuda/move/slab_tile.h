#pragma once

// Which part of a permuted tensor a block of threads moves at once, so that it reads and writes whole sectors of
// memory.

#include "kernels/division.h"
#include "kernels/strides.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

namespace plimsoll::cuda {

// A tile has every combination of some indices of every dimension. In a nest of two tensors as in copy_strided, in
// units:
struct SlabTile {
  LoopNest<2> tiles;      // where tiles begin
  LoopNest<2> by_source;  // a tile in the order of its source; strides[0] are those in shared memory
  LoopNest<2> by_target;  // the same units in the order of the destination; strides[1] are those in shared memory
  int64_t units = 0;      // of shared memory, some of them empty
  int read_width = 1, write_width = 1;  // units beside each other that a thread moves as one word

  int64_t reads() const { return by_source.iterations() / read_width; }  // words
  int64_t writes() const { return by_target.iterations() / write_width; }
};

// Of a word: where it is in memory, and where its first unit is in shared memory.
struct SlabPlace {
  int32_t in_memory, shared;
};

// Shared memory holds the tile and, behind it, the places of all words.
inline int64_t slab_places_at(const SlabTile& tile, int unit_bytes) { return round_up(tile.units * unit_bytes, 8); }
inline int64_t slab_shared_bytes(const SlabTile& tile, int unit_bytes) {
  return slab_places_at(tile, unit_bytes) + (tile.reads() + tile.writes()) * static_cast<int64_t>(sizeof(SlabPlace));
}

namespace slabs {

inline constexpr int to_side = 0, from_side = 1;
inline constexpr int64_t sector_bytes = 32, run_bytes = 64, longest_run_bytes = 512;
inline constexpr int64_t odd_run_bytes = 128;  // of a run that is no whole sectors
inline constexpr int64_t good_tile_bytes = 8192, most_good_bytes = 12288, most_shared_bytes = 49152;
inline constexpr int bank_bytes = 4;

using Sizes = std::array<int64_t, max_rank>;

class TileSearch {
 public:
  TileSearch(const LoopNest<2>& nest, int unit_bytes, int64_t most_bytes)
      : nest_(nest), unit_bytes_(unit_bytes), most_bytes_(most_bytes) {
    for (int side : {to_side, from_side}) {
      for (int d = 0; d < nest.rank; ++d) order_[side][d] = d;
      std::stable_sort(order_[side].begin(), order_[side].begin() + nest.rank,
                       [&](int a, int b) { return nest.strides[side][a] > nest.strides[side][b]; });
    }
    tile_.fill(1);
  }

  // The sizes of the tile; none where its runs would be shorter than a sector.
  std::optional<Sizes> search() {
    for (int side : {to_side, from_side})
      if (!reach_sectors(side)) return std::nullopt;
    most_bytes_ = std::min(most_bytes_, most_good_bytes);
    while (bytes() < good_tile_bytes) {
      const int shorter = run(from_side) <= run(to_side) ? from_side : to_side;
      if (!grow(shorter) && !grow(1 - shorter) && !grow_anywhere()) break;
    }
    return tile_;
  }

  const std::array<int, max_rank>& order(int side) const { return order_[side]; }  // outermost first

 private:
  int64_t bytes() const {
    int64_t units = unit_bytes_;
    for (int d = 0; d < nest_.rank; ++d) units *= tile_[d];
    return units;
  }

  // The bytes beside each other on a side of the tile.
  int64_t run(int side) const {
    int64_t units = 1;
    for (int i = nest_.rank - 1; i >= 0; --i) {
      const int d = order_[side][i];
      if (nest_.strides[side][d] != units) break;
      units *= tile_[d];
      if (tile_[d] != nest_.sizes[d]) break;
    }
    return units * unit_bytes_;
  }

  // The shortest run of whole sectors or, where none of moderate length is, the shortest one of some sectors.
  bool reach_sectors(int side) {
    while (!has_whole_sectors(side) && run(side) < odd_run_bytes && grow(side)) {
    }
    const Sizes shortest = tile_;
    while (!has_whole_sectors(side) && run(side) < longest_run_bytes && grow(side)) {
    }
    if (!has_whole_sectors(side)) tile_ = shortest;
    return run(side) >= sector_bytes;
  }

  bool has_whole_sectors(int side) const { return run(side) >= run_bytes && run(side) % sector_bytes == 0; }

  // More of a dimension, if that leaves a small tile: the next part of it that divides it.
  bool grow_dimension(int d) {
    const int64_t had = tile_[d];
    do ++tile_[d];
    while (nest_.sizes[d] % tile_[d] != 0);
    if (bytes() <= most_bytes_) return true;
    tile_[d] = had;
    return false;
  }

  // A longer run on a side. Runs of whole sectors stay so.
  bool grow(int side) {
    const Sizes had = tile_;
    const bool was_whole = has_whole_sectors(side);
    int64_t units = 1;
    for (int i = nest_.rank - 1; i >= 0; --i) {
      const int d = order_[side][i];
      if (nest_.strides[side][d] != units) break;
      while (tile_[d] < nest_.sizes[d] && grow_dimension(d))
        if (!was_whole || has_whole_sectors(side)) return true;
      units *= tile_[d];
      if (tile_[d] < nest_.sizes[d]) break;
    }
    tile_ = had;
    return false;
  }

  bool grow_anywhere() {
    for (int d = nest_.rank - 1; d >= 0; --d)
      if (tile_[d] < nest_.sizes[d] && grow_dimension(d)) return true;
    return false;
  }

  const LoopNest<2>& nest_;
  const int unit_bytes_;
  int64_t most_bytes_;
  Sizes tile_;
  std::array<int, max_rank> order_[2];
};

// Of units of 8 bytes and less: 8 bytes, or 4 of bytes.
constexpr int widest_word(int unit_bytes) { return unit_bytes == 1 ? 4 : 8 / unit_bytes; }

// The units of a word on a side: as many as fit, or half of them, or one, which divide the innermost run of the tile
// and every other step.
inline int width_of(const LoopNest<2>& nest, const Sizes& tile, int side, int innermost, int unit_bytes) {
  const auto fits = [&](int width) {
    if (tile[innermost] % width != 0) return false;
    for (int d = 0; d < nest.rank; ++d)
      if (d != innermost && nest.strides[side][d] % width != 0) return false;
    return true;
  };
  const int width = widest_word(unit_bytes);
  return fits(width) ? width : unit_bytes == 2 && fits(width / 2) ? width / 2 : 1;
}

// What is read one after the other lies an odd number of banks apart where it is whole banks apart.
constexpr int64_t pitch_of(int64_t row, int unit_bytes) {
  const int64_t bank = std::max(bank_bytes / unit_bytes, 1);
  return row % (2 * bank) == 0 ? row + bank : row;
}

inline std::optional<SlabTile> tile_of(const LoopNest<2>& nest, int unit_bytes, int64_t most_bytes) {
  TileSearch search(nest, unit_bytes, most_bytes);
  const std::optional<Sizes> tile = search.search();
  if (!tile) return std::nullopt;

  const int last = nest.rank - 1;
  SlabTile out;
  Sizes shared{};
  int64_t units = 1, reach[2] = {1, 1};
  for (int i = last; i >= 0; --i) {
    const int d = search.order(from_side)[i];
    if (d == last) units = pitch_of(units, unit_bytes);
    shared[d] = units;
    units *= (*tile)[d];
    if (i == last) units = pitch_of(units, unit_bytes);
  }
  out.units = units;
  const auto place = [&](LoopNest<2>& order, int d, int64_t to, int64_t from) {
    if ((*tile)[d] > 1) order.add_dimension((*tile)[d], {to, from});
  };
  for (int i = 0; i <= last; ++i) {
    const int s = search.order(from_side)[i], t = search.order(to_side)[i];
    place(out.by_source, s, shared[s], nest.strides[from_side][s]);
    place(out.by_target, t, nest.strides[to_side][t], shared[t]);
    const int64_t parts = nest.sizes[i] / (*tile)[i];
    if (parts > 1)
      out.tiles.add_dimension(parts, {nest.strides[to_side][i] * (*tile)[i], nest.strides[from_side][i] * (*tile)[i]});
    for (int side : {to_side, from_side}) reach[side] += ((*tile)[i] - 1) * nest.strides[side][i];
  }
  if (std::max(reach[0], reach[1]) > INT32_MAX) return std::nullopt;
  if (out.tiles.rank == 0) out.tiles.add_dimension(1, {});
  out.read_width = width_of(nest, *tile, from_side, search.order(from_side)[last], unit_bytes);
  out.write_width = width_of(nest, *tile, to_side, search.order(to_side)[last], unit_bytes);
  return out;
}

}  // namespace slabs

// A tile of a collapsed nest whose sides walk along consecutive units in different dimensions, of units of 1 to 8
// bytes. None where both do so in the last one, where a unit is read twice, or where no small tile has runs of whole
// sectors.
[[nodiscard]] inline std::optional<SlabTile> slab_tile(const LoopNest<2>& nest, int unit_bytes) {
  using namespace slabs;
  const int last = nest.rank - 1;
  if (nest.strides[from_side][last] == 1 || nest.strides[to_side][last] != 1) return std::nullopt;
  for (int d = 0; d < nest.rank; ++d)
    if (nest.strides[to_side][d] <= 0 || nest.strides[from_side][d] <= 0) return std::nullopt;
  for (int64_t most_bytes : {20480, 8192, 4096}) {
    std::optional<SlabTile> tile = tile_of(nest, unit_bytes, most_bytes);
    if (tile && slab_shared_bytes(*tile, unit_bytes) <= most_shared_bytes) return tile;
  }
  return std::nullopt;
}

}  // namespace plimsoll::cuda
