#include "passes/budget/least_layout.h"

// Layouts are looked at from the one with the fewest reckoned bytes on, which are cheap to know. So the first that
// reckons with too many ends the search.

#include "ir/support/parallel.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <vector>

namespace plimsoll {
namespace {

constexpr size_t at_once = 2;
constexpr double close_factor = 1.03;  // of the least: layouts that need no more are finished,
constexpr size_t max_finished = 4;     // the closest of them

struct Counted {
  size_t layout;
  int64_t live_bytes;
};

struct Placed {
  size_t layout;
  LayoutNeed need;
};

// The first of those that need least.
const Placed* least_of(llvm::ArrayRef<Placed> placed) {
  return std::min_element(placed.begin(), placed.end(),
                          [](const Placed& a, const Placed& b) { return a.need < b.need; });
}

// The closest first, a few at once. Those whose live bytes are not below the least by then are left as they are.
void finish_close(std::vector<Placed>& placed, llvm::function_ref<int64_t(size_t)> live_bytes,
                  llvm::function_ref<LayoutNeed(size_t)> finish) {
  if (placed.empty()) return;
  const LayoutNeed least = least_of(placed)->need;
  const LayoutNeed most{least.is_above_host, static_cast<int64_t>(close_factor * static_cast<double>(least.bytes))};
  llvm::erase_if(placed, [&](const Placed& each) { return each.need > most; });
  std::vector<size_t> order(placed.size());
  std::iota(order.begin(), order.end(), size_t{0});
  llvm::stable_sort(order, [&](size_t a, size_t b) { return placed[a].need < placed[b].need; });
  if (order.size() > max_finished) order.resize(max_finished);
  for (size_t next = 0; next < order.size();) {
    llvm::SmallVector<size_t, at_once> some;
    const LayoutNeed least_by_then = least_of(placed)->need;
    for (; next < order.size() && some.size() < at_once; ++next)
      if (LayoutNeed{false, live_bytes(placed[order[next]].layout)} < least_by_then) some.push_back(order[next]);
    parallel_for(some.size(), [&](size_t i) { placed[some[i]].need = finish(placed[some[i]].layout); });
  }
}

}  // namespace

std::optional<size_t> least_layout(llvm::ArrayRef<int64_t> reckoned_bytes, int64_t enough_bytes,
                                   llvm::function_ref<int64_t(size_t)> live_bytes,
                                   llvm::function_ref<LayoutNeed(size_t)> place,
                                   llvm::function_ref<LayoutNeed(size_t)> finish) {
  std::vector<size_t> order(reckoned_bytes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  llvm::stable_sort(order, [&](size_t a, size_t b) { return reckoned_bytes[a] < reckoned_bytes[b]; });
  std::vector<Placed> placed;
  const auto may_need_less = [&](int64_t at_least) {
    return at_least < enough_bytes && (placed.empty() || LayoutNeed{false, at_least} < least_of(placed)->need);
  };
  const auto is_ruled_out = [&](size_t layout) {
    return !may_need_less(static_cast<int64_t>(min_live_share * static_cast<double>(reckoned_bytes[layout])));
  };
  // Layouts that may need least by their live bytes and are not placed yet.
  std::vector<Counted> counted;
  for (size_t next = 0;;) {
    while (counted.size() < at_once && next < order.size() && !is_ruled_out(order[next])) {
      llvm::SmallVector<Counted, at_once> some;
      for (; next < order.size() && some.size() < at_once && !is_ruled_out(order[next]); ++next)
        some.push_back({order[next], 0});
      parallel_for(some.size(), [&](size_t i) { some[i].live_bytes = live_bytes(some[i].layout); });
      llvm::copy_if(some, std::back_inserter(counted),
                    [&](const Counted& each) { return may_need_less(each.live_bytes); });
    }
    const size_t count = std::min(counted.size(), at_once);
    if (count == 0) break;
    std::vector<Placed> some(count);
    parallel_for(count, [&](size_t i) { some[i] = {counted[i].layout, place(counted[i].layout)}; });
    llvm::append_range(placed, some);
    counted.erase(counted.begin(), counted.begin() + static_cast<ptrdiff_t>(count));
    llvm::erase_if(counted, [&](const Counted& each) { return !may_need_less(each.live_bytes); });
  }
  finish_close(placed, live_bytes, finish);
  if (placed.empty() || least_of(placed)->need.bytes >= enough_bytes) return std::nullopt;
  return least_of(placed)->layout;
}

}  // namespace plimsoll
