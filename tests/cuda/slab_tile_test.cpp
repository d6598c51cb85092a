#include "kernels/cuda/move/slab_tile.h"
#include "doctest/doctest.h"

#include <algorithm>
#include <functional>
#include <vector>

using namespace plimsoll;
using namespace plimsoll::cuda;

namespace {

// y[i...] of a dense x[shape...] with the dimensions `order`, as a collapsed nest.
LoopNest<2> permutation(const std::vector<int64_t>& shape, const std::vector<size_t>& order) {
  const auto strides_of = [](const std::vector<int64_t>& sizes) {
    std::vector<int64_t> strides(sizes.size(), 1);
    for (size_t d = sizes.size() - 1; d > 0; --d) strides[d - 1] = strides[d] * sizes[d];
    return strides;
  };
  std::vector<int64_t> sizes;
  for (size_t d : order) sizes.push_back(shape[d]);
  const std::vector<int64_t> from = strides_of(shape), to = strides_of(sizes);
  LoopNest<2> nest;
  for (size_t d = 0; d < order.size(); ++d) nest.add_dimension(sizes[d], {to[d], from[order[d]]});
  return collapse(nest);
}

using Offsets = std::array<int64_t, 2>;
void visit_all(const LoopNest<2>& nest, const std::function<void(const Offsets&)>& visit) {
  walk_outer(nest, 0, 0, nest.iterations(), visit);
}

// Where each element of the destination comes from, by way of the tile's shared memory.
std::vector<int64_t> moved_by(const SlabTile& tile, int64_t elements) {
  std::vector<int64_t> from(elements, -1), shared(tile.units);
  bool is_free = true;
  visit_all(tile.tiles, [&](const Offsets& first) {
    std::fill(shared.begin(), shared.end(), -1);
    visit_all(tile.by_source, [&](const Offsets& at) {
      is_free = is_free && shared.at(at[0]) == -1;
      shared.at(at[0]) = first[1] + at[1];
    });
    visit_all(tile.by_target, [&](const Offsets& at) { from.at(first[0] + at[0]) = shared.at(at[1]); });
  });
  CHECK(is_free);
  return from;
}

struct Permutation {
  std::vector<int64_t> shape;
  std::vector<size_t> order;
  int unit_bytes;
};

}  // namespace

TEST_SUITE("slab_tile") {
  TEST_CASE("tiles move every element to its place") {
    for (const Permutation& p : std::vector<Permutation>{{{3, 4, 12, 12, 128}, {0, 4, 1, 3, 2}, 2},
                                                         {{2, 8, 128, 2, 2, 12, 12}, {0, 1, 3, 4, 6, 5, 2}, 2},
                                                         {{2, 1024, 2, 12, 20}, {0, 1, 2, 4, 3}, 2},
                                                         {{3, 256, 128, 24}, {0, 3, 2, 1}, 2},
                                                         {{4, 196, 12, 32}, {0, 3, 2, 1}, 2},
                                                         {{4, 49, 24, 32}, {0, 3, 2, 1}, 2},
                                                         {{5, 7, 11, 13}, {3, 2, 1, 0}, 4},
                                                         {{5, 70, 110}, {2, 1, 0}, 4},
                                                         {{3, 60, 96}, {0, 2, 1}, 8},
                                                         {{3, 60, 96}, {0, 2, 1}, 1},
                                                         {{63, 128}, {1, 0}, 1}}) {
      CAPTURE(p.shape[1]);
      const LoopNest<2> nest = permutation(p.shape, p.order);
      const std::optional<SlabTile> tile = slab_tile(nest, p.unit_bytes);
      REQUIRE(tile.has_value());
      CHECK(slab_shared_bytes(*tile, p.unit_bytes) <= 49152);
      const std::vector<int64_t> from = moved_by(*tile, nest.iterations());
      bool is_moved = true;
      visit_all(nest, [&](const Offsets& at) { is_moved = is_moved && from[at[0]] == at[1]; });
      CHECK(is_moved);
    }
  }

  TEST_CASE("both sides of a tile have whole sectors, and words where these fit") {
    const std::optional<SlabTile> tile = slab_tile(permutation({64, 16, 16, 128, 16}, {0, 1, 2, 4, 3}), 2);
    REQUIRE(tile.has_value());
    CHECK(tile->by_source.iterations() == 2 * 128 * 16);
    CHECK(tile->read_width == 4);
    CHECK(tile->write_width == 4);
    CHECK(slab_tile(permutation({64, 49, 24, 32}, {0, 3, 2, 1}), 2)->write_width == 1);
  }

  TEST_CASE("there is no tile for what is no permutation, or has short runs only") {
    CHECK_FALSE(slab_tile(permutation({64, 6, 196, 9, 9}, {0, 2, 1, 3, 4}), 2).has_value());  // runs stay runs
    CHECK_FALSE(slab_tile(permutation({128, 16'001}, {1, 0}), 2).has_value());                // a prime number
    LoopNest<2> repeated;
    repeated.add_dimension(64, {64, 0});
    repeated.add_dimension(64, {1, 64});
    CHECK_FALSE(slab_tile(repeated, 2).has_value());
  }
}
