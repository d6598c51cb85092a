#include "passes/place/placement.h"

#include "passes/place/placement_exact.h"
#include "passes/place/placement_greedy.h"
#include "passes/place/placement_problem.h"

#include "llvm/Support/MathExtras.h"

#include <algorithm>
#include <numeric>

// Takes the problem apart before anything is searched: what is alive throughout
// a piece goes to its bottom, and moments that nothing lives across cut the rest
// into pieces that do not see each other. Pieces are then packed from the one
// with the largest bound down, each only as low as the ones before require.

namespace plimsoll {
namespace {

using namespace placement;

constexpr double steps_per_second = 300e6;
constexpr size_t exact_limit = 2000;   // buffers in a piece that is searched exactly
constexpr int64_t close_share = 2000;  // other pieces are good enough within 1/2000 of their bound

// Some of the intervals, and the height that what lies below them reaches.
struct Part {
  std::vector<int32_t> members;
  int64_t base = 0;
  Piece piece;
};

// In whole alignment units above `base`. A pin may reach below it, next to pins that lie there.
Buffer rounded(const Interval& interval, int64_t alignment, int64_t base) {
  int32_t steps = interval.last - interval.first + 1;
  if (interval.fixed_offset < 0) return {static_cast<int64_t>(llvm::alignTo(interval.bytes, alignment)), 0, 0, steps};
  int64_t low = interval.fixed_offset / alignment * alignment;
  int64_t high = static_cast<int64_t>(llvm::alignTo(interval.fixed_offset + interval.bytes, alignment));
  low = std::max(low - base, int64_t{0});
  high = std::max(high - base, int64_t{0});
  return {high - low, 0, 0, steps, low};
}

std::vector<int32_t> sorted_by(llvm::ArrayRef<Interval> intervals, llvm::ArrayRef<int32_t> members,
                               int32_t Interval::*step) {
  std::vector<int32_t> order(members.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return intervals[members[a]].*step < intervals[members[b]].*step; });
  return order;
}

// Fills part.piece from its members. A new section begins at a first step that follows a last one.
void compress_time(llvm::ArrayRef<Interval> intervals, int64_t alignment, Part& part) {
  Piece& piece = part.piece;
  piece = {};
  std::vector<int64_t> held;  // rounded pins may share an alignment unit, so they count unrounded
  for (int32_t m : part.members) {
    piece.buffers.push_back(rounded(intervals[m], alignment, part.base));
    const Buffer& buffer = piece.buffers.back();
    held.push_back(buffer.pinned < 0 ? buffer.bytes : std::min(buffer.bytes, intervals[m].bytes));
    piece.has_pinned |= buffer.pinned >= 0;
  }
  std::vector<int32_t> ends = sorted_by(intervals, part.members, &Interval::last);
  int64_t load = 0;
  int32_t section = 0;
  bool ended = false;
  auto end = ends.begin();
  for (int32_t i : sorted_by(intervals, part.members, &Interval::first)) {
    for (; intervals[part.members[*end]].last < intervals[part.members[i]].first; ++end, ended = true) {
      piece.buffers[*end].last = section;
      load -= held[*end];
    }
    if (ended) ++section;
    ended = false;
    Buffer& buffer = piece.buffers[i];
    buffer.first = section;
    load += held[i];
    int64_t pin_end = buffer.pinned < 0 ? 0 : buffer.pinned + buffer.bytes;
    piece.lower_bound = std::max({piece.lower_bound, load, pin_end});
  }
  for (; end != ends.end(); ++end) piece.buffers[*end].last = section;
  piece.sections = section + 1;
}

bool spans(const Piece& piece, const Buffer& buffer) { return buffer.first == 0 && buffer.last == piece.sections - 1; }

// Marks the spanning pins that stand on the bottom or on each other; returns where they end. Clears
// `all` if there are other pins.
int64_t spanning_pins(const Piece& piece, std::vector<char>& laid, bool& all) {
  std::vector<size_t> pins;
  for (size_t i = 0; i < laid.size(); ++i)
    if (piece.buffers[i].pinned >= 0) pins.push_back(i);
  std::stable_sort(pins.begin(), pins.end(),
                   [&](size_t a, size_t b) { return piece.buffers[a].pinned < piece.buffers[b].pinned; });
  int64_t base = 0;
  all = true;
  for (size_t i : pins) {
    const Buffer& pin = piece.buffers[i];
    laid[i] = spans(piece, pin) && pin.pinned <= base;
    if (laid[i])
      base = std::max(base, pin.pinned + pin.bytes);
    else
      all = false;
  }
  return base;
}

// Lays what is alive in all of the part at its bottom: pins that stand there already, then, when
// no pin is left, everything else. Returns whether the part became smaller.
bool lay_spanning_buffers(Part& part, std::vector<int64_t>& offsets) {
  const Piece& piece = part.piece;
  std::vector<char> laid(piece.buffers.size());
  bool free_of_pins = true;
  int64_t base = spanning_pins(piece, laid, free_of_pins);
  for (size_t i = 0; free_of_pins && i < laid.size(); ++i) {
    if (laid[i] || !spans(piece, piece.buffers[i])) continue;
    offsets[part.members[i]] = part.base + base;
    base += piece.buffers[i].bytes;
    laid[i] = 1;
  }
  std::vector<int32_t> rest;
  for (size_t i = 0; i < laid.size(); ++i)
    if (!laid[i]) rest.push_back(part.members[i]);
  bool smaller = rest.size() < part.members.size();
  part.members = std::move(rest);
  part.base += base;
  return smaller;
}

// Splits at the steps that no member lives across.
std::vector<Part> cut_in_time(llvm::ArrayRef<Interval> intervals, Part part) {
  std::stable_sort(part.members.begin(), part.members.end(),
                   [&](int32_t a, int32_t b) { return intervals[a].first < intervals[b].first; });
  std::vector<Part> parts;
  int32_t reach = 0;
  for (int32_t m : part.members) {
    if (parts.empty() || intervals[m].first > reach) {
      parts.push_back({{}, part.base, {}});
      reach = intervals[m].last;
    }
    parts.back().members.push_back(m);
    reach = std::max(reach, intervals[m].last);
  }
  return parts;
}

// The parts that neither a spanning buffer nor a cut makes smaller; everything else gets its offset.
std::vector<Part> take_apart(llvm::ArrayRef<Interval> intervals, int64_t alignment, Placement& result) {
  std::vector<Part> open(1), whole;
  for (size_t i = 0; i < intervals.size(); ++i)
    if (intervals[i].bytes > 0) open[0].members.push_back(static_cast<int32_t>(i));
  bool outermost = true;
  while (!open.empty()) {
    Part part = std::move(open.back());
    open.pop_back();
    compress_time(intervals, alignment, part);
    if (outermost) result.lower_bound_bytes = part.piece.lower_bound;
    outermost = false;
    bool smaller = lay_spanning_buffers(part, result.offsets);
    result.height_bytes = std::max(result.height_bytes, part.base);
    std::vector<Part> parts = cut_in_time(intervals, part);
    if (!smaller && parts.size() == 1)
      whole.push_back(std::move(part));
    else
      for (Part& p : parts) open.push_back(std::move(p));
  }
  return whole;
}

Packing pack(const Piece& piece, int64_t target, Effort& effort) {
  bool searchable = !piece.has_pinned && piece.buffers.size() <= exact_limit;
  if (!searchable) target = std::max(target, piece.lower_bound + piece.lower_bound / close_share);
  Packing best;
  try_static_orders(piece, target, effort, best);
  if (best.height <= target) return best;
  if (searchable)
    search_exactly(piece, target, effort, best);
  else
    promote_high_buffers(piece, target, effort, best);
  return best;
}

}  // namespace

Placement place_intervals(llvm::ArrayRef<Interval> intervals, const PlacementOptions& options) {
  Placement result;
  result.method = "stacked";
  result.offsets.assign(intervals.size(), 0);
  for (size_t i = 0; i < intervals.size(); ++i)
    if (intervals[i].fixed_offset >= 0) result.offsets[i] = intervals[i].fixed_offset;
  Effort effort(static_cast<int64_t>(options.seconds * steps_per_second));
  std::vector<Part> parts = take_apart(intervals, options.alignment, result);
  std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
    return a.base + a.piece.lower_bound > b.base + b.piece.lower_bound;
  });
  for (const Part& part : parts) {
    int64_t enough = std::max({options.stop_at_bytes, result.lower_bound_bytes, result.height_bytes});
    Packing packing = pack(part.piece, enough - part.base, effort);
    for (size_t i = 0; i < part.members.size(); ++i)
      if (part.piece.buffers[i].pinned < 0) result.offsets[part.members[i]] = part.base + packing.offsets[i];
    if (part.base + packing.height <= result.height_bytes) continue;
    result.height_bytes = part.base + packing.height;
    result.method = packing.method;
  }
  return result;
}

}  // namespace plimsoll
