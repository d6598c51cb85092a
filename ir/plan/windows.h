#pragma once

// The bytes of an arena that slots stand for, in windows, too.

#include "ir/plan/plan.h"
#include "ir/support/align.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace plimsoll {

inline bool is_in_window(int64_t offset) { return offset >= windows_begin; }

// Where memory has an arena and behind it its windows. Pages begin at multiples of their size.
struct ArenaAddresses {
  int64_t lead_bytes = 0;     // before the arena's first byte
  int64_t mapped_bytes = 0;   // with these: whole pages that hold the arena
  int64_t windows_bytes = 0;  // behind them, likewise whole pages

  explicit ArenaAddresses(const Arena& arena) : mapped_bytes(arena.bytes) {
    if (arena.windows.empty()) return;
    const PageWindow& last = arena.windows.back();
    lead_bytes = align_up(arena.persistent_bytes, arena.page_bytes) - arena.persistent_bytes;
    mapped_bytes = align_up(lead_bytes + arena.bytes, arena.page_bytes);
    windows_bytes = last.offset + static_cast<int64_t>(last.pages.size()) * arena.page_bytes - windows_begin;
  }
  int64_t bytes() const { return mapped_bytes + windows_bytes; }
  // Of an offset of the arena, from its first byte.
  int64_t address_of(int64_t offset) const {
    return is_in_window(offset) ? mapped_bytes - lead_bytes + offset - windows_begin : offset;
  }
};

// The number of a page, as windows have it, from the first mapped byte on.
inline int64_t mapped_page(const Arena& arena, int64_t page) {
  return align_up(arena.persistent_bytes, arena.page_bytes) / arena.page_bytes + page;
}

// The last window that begins at the address or below; null: there is none.
inline const PageWindow* window_at(const Arena& arena, int64_t offset) {
  const auto behind = std::upper_bound(arena.windows.begin(), arena.windows.end(), offset,
                                       [](int64_t at, const PageWindow& each) { return at < each.offset; });
  return behind == arena.windows.begin() ? nullptr : &*std::prev(behind);
}

// Calls visit(from, to) for each run of the arena's bytes that the addresses [from, to) stand for, in their order.
// Addresses outside of the arena and its windows stand for none.
template <typename Visit>
void for_each_run(const Arena& arena, int64_t from, int64_t to, Visit visit) {
  if (!is_in_window(from)) return visit(from, to);
  const PageWindow* window = window_at(arena, from);
  if (!window) return;
  int64_t run = -1, end = -1;
  for (int64_t at = from; at < to;) {
    const auto page = static_cast<size_t>((at - window->offset) / arena.page_bytes);
    if (page >= window->pages.size()) break;
    const int64_t in_page = (at - window->offset) % arena.page_bytes;
    const int64_t begin = arena.persistent_bytes + window->pages[page] * arena.page_bytes + in_page;
    const int64_t bytes = std::min(arena.page_bytes - in_page, to - at);
    if (begin != end) {
      if (run >= 0) visit(run, end);
      run = begin;
    }
    end = begin + bytes;
    at += bytes;
  }
  if (run >= 0) visit(run, end);
}

// Whether two ranges of addresses have a byte of the arena in common.
inline bool share_bytes(const Arena& arena, int64_t from, int64_t to, int64_t other_from, int64_t other_to) {
  if (!is_in_window(from) && !is_in_window(other_from)) return from < other_to && other_from < to;
  using Runs = llvm::SmallVector<std::pair<int64_t, int64_t>, 16>;
  const auto runs_of = [&](int64_t begin, int64_t end) {
    Runs runs;
    for_each_run(arena, begin, end, [&](int64_t a, int64_t b) { runs.push_back({a, b}); });
    llvm::sort(runs);
    return runs;
  };
  const Runs ours = runs_of(from, to), others = runs_of(other_from, other_to);
  auto other = others.begin();
  for (const auto& [begin, end] : ours) {
    while (other != others.end() && other->second <= begin) ++other;
    if (other != others.end() && other->first < end) return true;
  }
  return false;
}

inline bool share_bytes(const Plan& plan, const Slot& a, const Slot& b) {
  return a.space == b.space && share_bytes(plan.arenas[static_cast<size_t>(a.space)], a.offset, a.offset + a.bytes,
                                           b.offset, b.offset + b.bytes);
}

}  // namespace plimsoll
