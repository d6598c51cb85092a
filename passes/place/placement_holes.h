#pragma once

// Which bytes are taken over which sections, asked as "where does a buffer of
// this size and lifetime fit".

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"

#include <cstdint>
#include <vector>

namespace plimsoll::placement {

enum class Fit { First, Tightest };

class HoleTree {
 public:
  explicit HoleTree(int32_t sections);

  void clear();
  // Marks bytes [low, high) as taken in sections [first, last]. Taken bytes may be taken again.
  void occupy(int32_t first, int32_t last, int64_t low, int64_t high);
  // The offset of the first or the tightest hole of `bytes` that is free in all of [first, last];
  // -1 when none ends at or below `limit`.
  int64_t find(int32_t first, int32_t last, int64_t bytes, Fit fit, int64_t limit);

  // Elementary steps since construction.
  int64_t steps() const { return steps_; }

 private:
  struct Span {
    int64_t low, high;
  };
  using Spans = std::vector<Span>;  // sorted, disjoint, never touching
  struct Node {
    Spans whole;   // taken in every section of the node by buffers that end at this node
    Spans within;  // taken in at least one section of the node, `whole` included
  };
  struct Cursor {
    const Span* at;
    const Span* end;
  };

  void add(Spans& spans, Span span);
  void occupy_node(int32_t node, int32_t begin, int32_t width, int32_t first, int32_t last, Span span);
  void collect(int32_t node, int32_t begin, int32_t width, int32_t first, int32_t last);
  int64_t next_hole(int64_t from, int64_t bytes, int64_t limit);
  int64_t hole_end() const;

  int32_t leaves_ = 1;
  std::vector<Node> nodes_;
  llvm::SmallVector<Cursor, 64> cursors_;
  int64_t steps_ = 0;
};

}  // namespace plimsoll::placement
