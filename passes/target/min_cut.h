#pragma once

// Minimum cuts of directed graphs with capacities.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace plimsoll {

class MinCut {
 public:
  static constexpr int64_t unbounded = INT64_MAX / 4;

  explicit MinCut(size_t vertices) : first_(vertices, none) {}

  void add_edge(size_t from, size_t to, int64_t capacity);
  // Which vertices are on the source's side of a cut whose edges to the sink's side have the least capacity together.
  // Of several such cuts the one with fewest vertices there. Uses the edges up, so it is asked once.
  std::vector<bool> source_side(size_t source, size_t sink);

 private:
  static constexpr int32_t none = -1;
  struct Edge {
    size_t to;
    int64_t capacity;
    int32_t next;  // of the same vertex
  };

  bool find_levels(size_t source, size_t sink);
  bool push_along_path(size_t source, size_t sink);

  std::vector<Edge> edges_;  // each beside its reverse
  std::vector<int32_t> first_, open_, level_;
};

}  // namespace plimsoll
