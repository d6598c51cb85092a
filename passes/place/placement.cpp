#include "passes/place/placement.h"

#include "ir/support/search_effort.h"
#include "passes/place/placement_problem.h"

#include "llvm/Support/MathExtras.h"

#include <algorithm>
#include <numeric>

// Before anything is searched, the problem is taken apart: a buffer that is alive
// throughout a piece goes to the bottom of it, and steps that no buffer lives across
// cut the rest into pieces that do not see each other. Pieces are then packed from
// the one with the largest bound down, each only as low as the ones before require.

namespace plimsoll {
namespace {

using namespace placement;

constexpr size_t exact_limit = 2000;   // of more buffers neither search finds a lower packing in the time
constexpr int64_t close_share = 2000;  // a larger piece gets no further orders within 1/2000 of its bound

// Some of the intervals, and the height that what lies below them reaches.
struct Part {
  std::vector<int32_t> members;
  int64_t base = 0;
  Piece piece;
};

std::vector<int32_t> sorted_by(llvm::ArrayRef<Interval> intervals, llvm::ArrayRef<int32_t> members,
                               int32_t Interval::*step) {
  std::vector<int32_t> order(members.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return intervals[members[a]].*step < intervals[members[b]].*step; });
  return order;
}

// Fills part.piece from its members, sizes rounded up. A new section begins at a first step that follows a last one.
void compress_time(llvm::ArrayRef<Interval> intervals, int64_t alignment, Part& part) {
  Piece& piece = part.piece;
  piece = {};
  for (int32_t m : part.members) {
    const Interval& interval = intervals[m];
    piece.buffers.push_back(
        {static_cast<int64_t>(llvm::alignTo(interval.bytes, alignment)), 0, 0, interval.last - interval.first + 1});
  }
  std::vector<int32_t> ends = sorted_by(intervals, part.members, &Interval::last);
  int64_t live = 0;
  int32_t section = 0;
  bool ended = false;
  auto end = ends.begin();
  for (int32_t i : sorted_by(intervals, part.members, &Interval::first)) {
    for (; intervals[part.members[*end]].last < intervals[part.members[i]].first; ++end, ended = true) {
      piece.buffers[*end].last = section;
      live -= piece.buffers[*end].bytes;
    }
    if (ended) ++section;
    ended = false;
    piece.buffers[i].first = section;
    live += piece.buffers[i].bytes;
    piece.lower_bound = std::max(piece.lower_bound, live);
  }
  for (; end != ends.end(); ++end) piece.buffers[*end].last = section;
  piece.sections = section + 1;
}

bool spans(const Piece& piece, const Buffer& buffer) { return buffer.first == 0 && buffer.last == piece.sections - 1; }

// Lays what is alive in all of the part at its bottom. Returns whether the part became smaller.
bool lay_spanning_buffers(Part& part, std::vector<int64_t>& offsets) {
  std::vector<int32_t> rest;
  for (size_t i = 0; i < part.members.size(); ++i) {
    if (!spans(part.piece, part.piece.buffers[i])) {
      rest.push_back(part.members[i]);
      continue;
    }
    offsets[part.members[i]] = part.base;
    part.base += part.piece.buffers[i].bytes;
  }
  bool smaller = rest.size() < part.members.size();
  part.members = std::move(rest);
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

// Returns the parts that neither a spanning buffer nor a cut makes smaller; all other buffers get their offsets.
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

int64_t close_target(const Piece& piece, int64_t target) {
  const bool searchable = piece.buffers.size() <= exact_limit;
  return searchable ? target : std::max(target, piece.lower_bound + piece.lower_bound / close_share);
}

// Lowers what greedy orders came to, towards the target, by one search after the other while the height is above
// `close`.
void improve(const Piece& piece, int64_t target, int64_t close, Effort& effort, Packing& best) {
  const auto spend = [&](int64_t steps, auto search) {
    if (best.height <= std::max(target, close)) return;
    Effort part(steps);
    search(piece, target, part, best);
    effort.spend(steps - part.left());
  };
  if (best.height <= std::max(target, close)) return;
  come_near(piece, std::max(target, close), best);
  ExactSearch exact(piece);
  const auto search_exactly = [&](const Piece&, int64_t lowest, Effort& part, Packing& packing) {
    exact.lower(lowest, part, packing);
  };
  const int64_t sixth = effort.left() / 6;
  if (piece.buffers.size() > exact_limit) return spend(2 * sixth, search_by_ejection);
  spend(sixth, search_exactly);
  spend(sixth, search_by_ejection);
  spend(2 * sixth, search_exactly);
  spend(effort.left() - sixth, search_by_conflicts);
  spend(effort.left(), press_together);
}

}  // namespace

Placement place_intervals(llvm::ArrayRef<Interval> intervals, const PlacementOptions& options) {
  Placement result;
  result.method = "stacked";
  result.offsets.assign(intervals.size(), 0);
  Effort effort(steps_for(options.seconds, placement_steps_per_second));
  std::vector<Part> parts = take_apart(intervals, options.alignment, result);
  std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
    return a.base + a.piece.lower_bound > b.base + b.piece.lower_bound;
  });
  // All pieces get their greedy orders before any is searched further, so that a search does not take their work.
  std::vector<Packing> packings(parts.size());
  const int64_t least_bytes = std::max(result.lower_bound_bytes, options.capacity_bytes);
  int64_t enough_bytes = std::max(least_bytes, result.height_bytes);
  for (size_t p = 0; p < parts.size(); ++p) {
    const Part& part = parts[p];
    const int64_t target = close_target(part.piece, enough_bytes - part.base);
    try_static_orders(part.piece, target, effort, packings[p]);
    if (options.peak_orders) try_peak_orders(part.piece, target, effort, packings[p]);
    enough_bytes = std::max(enough_bytes, part.base + packings[p].height);
  }
  const bool goes_on = !options.goes_on || options.goes_on(enough_bytes);
  for (size_t p = 0; p < parts.size(); ++p) {
    const Part& part = parts[p];
    Packing& packing = packings[p];
    const int64_t enough = std::max(least_bytes, result.height_bytes) - part.base;
    const int64_t close = options.close_bytes - part.base;
    if (goes_on) improve(part.piece, enough, close, effort, packing);
    for (size_t i = 0; i < part.members.size(); ++i) result.offsets[part.members[i]] = part.base + packing.offsets[i];
    if (part.base + packing.height <= result.height_bytes) continue;
    result.height_bytes = part.base + packing.height;
    result.method = packing.method;
  }
  return result;
}

}  // namespace plimsoll
