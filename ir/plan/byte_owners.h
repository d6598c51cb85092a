#pragma once

// The checker remembers here who wrote each byte of an arena last.

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>

namespace plimsoll {

class ByteOwners {
 public:
  struct Piece {
    int64_t end;
    int32_t owner;
  };

  // `owner` has [begin, end) from now on; pieces of others are cut back.
  void write(int64_t begin, int64_t end, int32_t owner) {
    if (begin == end) return;
    auto at = first_touching(begin, end);
    while (at != pieces_.end() && at->first < end) {
      auto [old_begin, old] = *at;
      at = pieces_.erase(at);
      if (old_begin < begin) pieces_.emplace_hint(at, old_begin, Piece{begin, old.owner});
      if (old.end > end) at = pieces_.emplace_hint(at, end, old);
    }
    pieces_.emplace_hint(at, begin, Piece{end, owner});
  }

  // Takes over from `other` who wrote the bytes [begin, end) last.
  void copy(const ByteOwners& other, int64_t begin, int64_t end) {
    other.visit_pieces(begin, end, [&](int64_t from, int64_t to, int32_t owner) {
      write(from, to, owner);
      return true;
    });
  }

  // The first owner of bytes in [begin, end) that `other` has another owner of; none where they agree.
  std::optional<int32_t> difference(const ByteOwners& other, int64_t begin, int64_t end) const {
    std::optional<int32_t> found;
    visit_pieces(begin, end, [&](int64_t from, int64_t to, int32_t owner) {
      other.for_each_in(from, to, [&](int32_t each) {
        if (each != owner) found = owner;
        return !found;
      });
      return !found;
    });
    return found;
  }

  // Says whether `owner` is the last writer of all of [begin, end). Each write is one range, so an intact one is one
  // piece.
  bool holds(int64_t begin, int64_t end, int32_t owner) const {
    if (begin == end) return true;
    auto at = pieces_.find(begin);
    return at != pieces_.end() && at->second.end == end && at->second.owner == owner;
  }

  // Calls visit(owner) for every piece that shares a byte with [begin, end), in order of address, until it
  // returns false.
  template <typename Visit>
  void for_each_in(int64_t begin, int64_t end, Visit visit) const {
    for (auto at = first_touching(begin, end); at != pieces_.end() && at->first < end; ++at)
      if (!visit(at->second.owner)) return;
  }

 private:
  using Pieces = std::map<int64_t, Piece>;

  // visit(from, to, owner) for the pieces of for_each_in, cut to [begin, end).
  template <typename Visit>
  void visit_pieces(int64_t begin, int64_t end, Visit visit) const {
    for (auto at = first_touching(begin, end); at != pieces_.end() && at->first < end; ++at)
      if (!visit(std::max(at->first, begin), std::min(at->second.end, end), at->second.owner)) return;
  }

  template <typename Self>
  static auto first_touching_in(Self& pieces, int64_t begin) {
    auto at = pieces.upper_bound(begin);
    if (at != pieces.begin() && std::prev(at)->second.end > begin) --at;
    return at;
  }
  Pieces::iterator first_touching(int64_t begin, int64_t end) {
    return begin == end ? pieces_.end() : first_touching_in(pieces_, begin);
  }
  Pieces::const_iterator first_touching(int64_t begin, int64_t end) const {
    return begin == end ? pieces_.end() : first_touching_in(pieces_, begin);
  }

  Pieces pieces_;  // by first byte; disjoint
};

}  // namespace plimsoll
