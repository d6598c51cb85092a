#include "passes/place/placement_problem.h"

#include <algorithm>
#include <numeric>

// A training step has thousands of small buffers that end, or begin, with others: what a layer keeps for backward.
// Where such buffers lie side by side they leave one hole. A greedy order of blocks keeps them so, and takes less time.

namespace plimsoll::placement {
namespace {

class BlockBuilder {
 public:
  BlockBuilder(const Piece& piece, int64_t max_bytes) : max_bytes_(max_bytes), bound_(piece.lower_bound) {
    live_.assign(static_cast<size_t>(piece.sections) + 1, 0);
    for (size_t i = 0; i < piece.buffers.size(); ++i) {
      const Buffer& b = piece.buffers[i];
      blocks_.push_back({b, {static_cast<int32_t>(i)}});
      live_[b.first] += b.bytes;
      live_[b.last + 1] -= b.bytes;
    }
    std::partial_sum(live_.begin(), live_.end(), live_.begin());
  }

  Blocks build(const Piece& piece) {
    join(&Buffer::last, [](const Buffer& b) { return -b.first; });
    join(&Buffer::first, [](const Buffer& b) { return b.last; });
    Blocks blocks;
    blocks.piece.sections = piece.sections;
    blocks.piece.lower_bound = piece.lower_bound;
    blocks.block_of.resize(piece.buffers.size());
    blocks.begin_bytes.resize(piece.buffers.size());
    for (const Block& block : blocks_) {
      int64_t begin = 0;
      for (int32_t member : block.members) {
        blocks.block_of[member] = static_cast<int32_t>(blocks.piece.buffers.size());
        blocks.begin_bytes[member] = begin;
        begin += piece.buffers[member].bytes;
      }
      blocks.piece.buffers.push_back(block.buffer);
    }
    return blocks;
  }

 private:
  struct Block {
    Buffer buffer;
    std::vector<int32_t> members;
  };

  // Joins small neighbours by the other end of their lives among those that share `end`.
  template <typename F>
  void join(int32_t Buffer::*end, F other_end) {
    std::stable_sort(blocks_.begin(), blocks_.end(), [&](const Block& a, const Block& b) {
      return std::pair(a.buffer.*end, other_end(a.buffer)) < std::pair(b.buffer.*end, other_end(b.buffer));
    });
    std::vector<Block> joined;
    for (Block& block : blocks_) {
      const bool has_neighbour = !joined.empty() && joined.back().buffer.*end == block.buffer.*end;
      if (!has_neighbour || !join(joined.back(), block)) joined.push_back(std::move(block));
    }
    blocks_ = std::move(joined);
  }

  // A block lives as long as any of its members, but never where that would raise the bound.
  bool join(Block& block, const Block& next) {
    const Buffer &a = block.buffer, &b = next.buffer;
    if (b.bytes > max_bytes_ || a.bytes + b.bytes > max_members * max_bytes_) return false;
    const int32_t first = std::min(a.first, b.first), last = std::max(a.last, b.last);
    if (!has_room(first, last, a) || !has_room(first, last, b)) return false;
    lengthen(first, last, a);
    lengthen(first, last, b);
    block.buffer.first = first;
    block.buffer.last = last;
    block.buffer.steps = std::max(a.steps, b.steps);
    block.buffer.bytes += b.bytes;
    block.members.insert(block.members.end(), next.members.begin(), next.members.end());
    return true;
  }

  // They share an end, so only one of them gets longer.
  bool has_room(int32_t first, int32_t last, const Buffer& b) const {
    const auto is_free = [&](int64_t live) { return live + b.bytes <= bound_; };
    return std::all_of(live_.begin() + first, live_.begin() + b.first, is_free) &&
           std::all_of(live_.begin() + b.last + 1, live_.begin() + last + 1, is_free);
  }

  void lengthen(int32_t first, int32_t last, const Buffer& b) {
    for (int32_t s = first; s < b.first; ++s) live_[s] += b.bytes;
    for (int32_t s = b.last + 1; s <= last; ++s) live_[s] += b.bytes;
  }

  static constexpr int64_t max_members = 4;  // of the largest bytes
  int64_t max_bytes_, bound_;
  std::vector<Block> blocks_;
  std::vector<int64_t> live_;  // bytes by section
};

}  // namespace

Blocks blocks_of(const Piece& piece, int64_t max_bytes) { return BlockBuilder(piece, max_bytes).build(piece); }

}  // namespace plimsoll::placement
