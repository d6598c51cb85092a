#include "passes/place/paged_placement.h"

#include "ir/support/align.h"
#include "ir/support/windows_begin.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/Support/MathExtras.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <queue>
#include <tuple>

// Time is gone through once, and what has its place keeps it. Whole pages are all alike, so only pieces of pages can be
// in vain: those that neither begin nor end their page, and those that are shorter than what is left of a buffer. Each
// buffer takes the pieces that leave least of that. What is good at one step may be bad at a later one, so several
// weights of costs are tried, at ever lower heights.

namespace plimsoll {
namespace {

struct Range {
  int64_t from, to;
  int64_t bytes() const { return to - from; }
};
using Ranges = llvm::SmallVector<Range, 4>;

// The free bytes of an arena.
class FreeRanges {
 public:
  explicit FreeRanges(int64_t bytes) : free_{{0, bytes}} {}

  void take(Range range) {
    const auto at = std::prev(from(range.from + 1));
    const Range hole = *at;
    if (hole.from == range.from && hole.to == range.to) {
      free_.erase(at);
    } else if (hole.from == range.from) {
      at->from = range.to;
    } else {
      at->to = range.from;
      if (range.to < hole.to) free_.insert(std::next(at), {range.to, hole.to});
    }
  }
  void give_back(Range range) {
    const auto next = from(range.from);
    const bool joins_next = next != free_.end() && next->from == range.to;
    if (next == free_.begin() || std::prev(next)->to != range.from) {
      if (joins_next)
        next->from = range.from;
      else
        free_.insert(next, range);
      return;
    }
    std::prev(next)->to = joins_next ? next->to : range.to;
    if (joins_next) free_.erase(next);
  }
  llvm::ArrayRef<Range> all() const { return free_; }

 private:
  // The first that begins there or later.
  std::vector<Range>::iterator from(int64_t begin) {
    return llvm::partition_point(free_, [&](const Range& each) { return each.from < begin; });
  }
  std::vector<Range> free_;  // in order, without neighbours
};

struct Problem {
  // Short buffers lie apart that are alive for this share of all time.
  Problem(llvm::ArrayRef<Interval> intervals, int64_t alignment, int64_t page_bytes, double most_of_time);

  llvm::ArrayRef<Interval> intervals;
  int64_t page;
  std::vector<int64_t> bytes;         // rounded up
  std::vector<int32_t> order;         // of those that lie in pages, by first step, the largest first
  std::vector<int32_t> last;          // their last steps, in that order
  std::vector<int64_t> offset_apart;  // of those that lie behind all pages; -1: of others
  int64_t apart_bytes = 0;            // that these take together
  int64_t peak_bytes = 0;
  double steps = 1;
};

// Tiny buffers, and short ones that are alive most of the time, would keep pages from being whole.
constexpr int64_t tiny_per_page = 64;

Problem::Problem(llvm::ArrayRef<Interval> intervals, int64_t alignment, int64_t page_bytes, double most_of_time)
    : intervals(intervals), page(page_bytes), offset_apart(intervals.size(), -1) {
  for (const Interval& interval : intervals) {
    bytes.push_back(align_up(std::max<int64_t>(interval.bytes, 1), alignment));
    steps = std::max(steps, static_cast<double>(interval.last) + 1);
  }
  std::vector<int64_t> change(static_cast<size_t>(steps) + 1, 0);
  std::vector<Interval> apart;
  std::vector<size_t> those_apart;
  for (size_t i = 0; i < bytes.size(); ++i) {
    change[intervals[i].first] += bytes[i];
    change[intervals[i].last + 1] -= bytes[i];
    const bool is_long = intervals[i].last - intervals[i].first >= most_of_time * steps;
    if (bytes[i] * (is_long ? 1 : tiny_per_page) > page) {
      order.push_back(static_cast<int32_t>(i));
      continue;
    }
    apart.push_back({bytes[i], intervals[i].first, intervals[i].last});
    those_apart.push_back(i);
  }
  llvm::stable_sort(order, [&](int32_t a, int32_t b) {
    return std::pair(intervals[a].first, -bytes[a]) < std::pair(intervals[b].first, -bytes[b]);
  });
  for (int32_t i : order) last.push_back(intervals[i].last);
  std::partial_sum(change.begin(), change.end(), change.begin());
  peak_bytes = *std::max_element(change.begin(), change.end());
  const auto no_search = [](int64_t) { return false; };
  PlacementOptions options;
  options.alignment = alignment;
  options.goes_on = no_search;
  const Placement placed = place_intervals(apart, options);
  for (size_t i = 0; i < those_apart.size(); ++i) offset_apart[those_apart[i]] = placed.offsets[i];
  apart_bytes = placed.height_bytes;
}

// Of costs, in pages.
struct Weights {
  double end = 1;  // of a life that ends elsewhere than that of what has the rest of the page, as a share of all time
  double fresh = 0.5;  // of what a page has left that nobody had a piece of
  double used = 0.5;   // of what a page has no more left; it is a gain
};

// Other weights for each part that is placed again, spread over what did best somewhere.
class WeightsOfTries {
 public:
  Weights next() {
    return {std::pow(10, -1.3 + 3 * random()), std::pow(10, -1.5 + 2 * random()), std::pow(10, -1 + 1.5 * random())};
  }

 private:
  double random() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX
    return static_cast<double>(state_ >> 40) / static_cast<double>(1 << 24);
  }
  uint64_t state_ = 1;
};

class Sweep {
 public:
  // Below the height, whose last page need not be whole.
  Sweep(const Problem& problem, int64_t height_bytes)
      : problem_(problem),
        page_(problem.page),
        height_bytes_(height_bytes),
        page_bits_(llvm::Log2_64(static_cast<uint64_t>(page_))),
        free_(height_bytes),
        places_(problem.bytes.size()),
        end_of_(static_cast<size_t>(height_bytes / page_) + 1, 0) {}

  // False: `work`, the number of buffers that are given a place, is at its end before all have one.
  bool place(int64_t& work, size_t most_back);
  PagedPlacement placement() const;

 private:
  struct Place {
    Ranges ranges;               // of the arena
    std::vector<int64_t> pages;  // that hold them, where these are no run
  };
  // Where a buffer begins and ends: `head` bytes at the end of a page, `tail` bytes at the beginning of another one.
  struct Chain {
    double cost;
    int64_t head, head_page, tail, tail_page;
    bool operator<(const Chain& other) const {
      return std::tie(cost, head, head_page, tail, tail_page) <
             std::tie(other.cost, other.head, other.head_page, other.tail, other.tail_page);
    }
  };
  struct Piece {
    int64_t bytes, page;
    bool operator<(const Piece& other) const { return std::tie(bytes, page) < std::tie(other.bytes, other.page); }
  };
  static constexpr int64_t no_page = -1, fresh_page = -2;

  bool put(int32_t interval);
  void go_back(size_t index);
  void let_end(int32_t now);
  bool take_hole(int32_t interval);
  bool take_chain(int32_t interval);
  void find_pieces();
  std::optional<Chain> cheapest(int32_t interval) const;
  std::vector<int64_t> whole_pages(int64_t count, int64_t behind) const;
  void take(int32_t interval, Place place);
  double end_cost(int64_t page, int32_t interval) const;
  int64_t page_of(int64_t offset) const { return offset >> page_bits_; }
  int64_t in_page(int64_t offset) const { return offset & (page_ - 1); }
  double pages(int64_t bytes) const { return static_cast<double>(bytes) / static_cast<double>(page_); }

  const Problem& problem_;
  Weights weights_;
  WeightsOfTries more_weights_;
  int64_t page_, height_bytes_;
  unsigned page_bits_;
  FreeRanges free_;
  std::vector<Place> places_;
  using End = std::pair<int32_t, int32_t>;  // the last step, and whose
  std::priority_queue<End, std::vector<End>, std::greater<>> alive_;
  std::vector<int32_t> end_of_;  // by page: the last step of those that had pieces of it
  // Of the interval that is placed now.
  std::vector<Piece> heads_, tails_;
  std::vector<Range> runs_;  // of whole pages that are free, by number
  int64_t whole_ = 0;        // their count
};

double Sweep::end_cost(int64_t page, int32_t interval) const {
  return weights_.end * std::abs(end_of_[page] - problem_.intervals[interval].last) / problem_.steps;
}

void Sweep::take(int32_t interval, Place place) {
  const int32_t last = problem_.intervals[interval].last;
  for (const Range& range : place.ranges) {
    free_.take(range);
    for (int64_t page = page_of(range.from); page * page_ < range.to; ++page)
      end_of_[page] = std::max(end_of_[page], last);
  }
  places_[interval] = std::move(place);
  alive_.push({last, interval});
}

// Of less than a page: at a border of a hole, within one piece of a page if there is such a place.
bool Sweep::take_hole(int32_t interval) {
  const int64_t bytes = problem_.bytes[interval];
  std::optional<std::pair<double, int64_t>> best;
  const auto consider = [&](double cost, int64_t at) {
    const std::pair next(cost, at);
    if (!best || next < *best) best = next;
  };
  for (const Range& hole : free_.all()) {
    if (hole.bytes() < bytes) continue;
    const int64_t begin = in_page(hole.from), end = in_page(hole.to);
    if (page_of(hole.from) == page_of(hole.to - 1)) {
      consider(pages(hole.bytes() - bytes) + end_cost(page_of(hole.from), interval),
               begin > 0 ? hole.from : hole.to - bytes);
      continue;
    }
    if (begin > 0)
      consider(pages(std::max<int64_t>(page_ - begin - bytes, 0)) + (page_ - begin < bytes ? 1 : 0) +
                   end_cost(page_of(hole.from), interval),
               hole.from);
    if (end >= bytes) consider(pages(end - bytes) + end_cost(page_of(hole.to), interval), hole.to - bytes);
    if (begin == 0)
      consider(2, hole.from);
    else if (end == 0)
      consider(2, hole.to - bytes);
  }
  if (!best) return false;
  take(interval, {{{best->second, best->second + bytes}}, {}});
  return true;
}

void Sweep::find_pieces() {
  heads_.clear();
  tails_.clear();
  runs_.clear();
  whole_ = 0;
  for (const Range& hole : free_.all()) {
    const int64_t first = page_of(hole.from + page_ - 1), behind = page_of(hole.to);  // of whole pages
    if (in_page(hole.from) > 0 && first * page_ <= hole.to) heads_.push_back({first * page_ - hole.from, first - 1});
    if (in_page(hole.to) > 0 && behind * page_ >= hole.from) tails_.push_back({hole.to - behind * page_, behind});
    if (first >= behind) continue;
    runs_.push_back({first, behind});
    whole_ += behind - first;
  }
  llvm::sort(tails_);
}

std::optional<Sweep::Chain> Sweep::cheapest(int32_t interval) const {
  std::optional<Chain> best;
  const auto consider = [&](const Chain& next, int64_t whole) {
    if (whole <= whole_ && (!best || next < *best)) best = next;
  };
  const auto begin_with = [&](int64_t head, int64_t head_page) {
    if (head > problem_.bytes[interval]) return;
    const int64_t whole = page_of(problem_.bytes[interval] - head), tail = in_page(problem_.bytes[interval] - head);
    const double cost = head > 0 ? end_cost(head_page, interval) - weights_.used * pages(head) : 0;
    if (tail == 0) return consider({cost, head, head_page, 0, no_page}, whole);
    consider({cost + weights_.fresh * pages(page_ - tail), head, head_page, tail, fresh_page}, whole + 1);
    for (auto at = std::lower_bound(tails_.begin(), tails_.end(), Piece{tail, no_page}); at != tails_.end(); ++at) {
      const double least = cost + pages(at->bytes - tail) - weights_.used * pages(tail);
      if (best && least > best->cost) return;  // and those behind it cost more
      if (at->page != head_page)
        consider({least + end_cost(at->page, interval), head, head_page, tail, at->page}, whole);
    }
  };
  begin_with(0, no_page);
  for (const Piece& head : heads_) begin_with(head.bytes, head.page);
  return best;
}

// Those behind a page, or else of the shortest run that has as many, or of the shortest runs.
std::vector<int64_t> Sweep::whole_pages(int64_t count, int64_t behind) const {
  std::vector<int64_t> pages;
  if (count == 0) return pages;
  std::vector<Range> runs = runs_;
  llvm::stable_sort(runs, [&](const Range& a, const Range& b) {
    const auto rank = [&](const Range& run) {
      const bool is_long = run.bytes() >= count;
      return std::tuple(!(is_long && run.from == behind), !is_long, run.bytes());
    };
    return rank(a) < rank(b);
  });
  for (const Range& run : runs)
    for (int64_t page = run.from; page < run.to; ++page) {
      pages.push_back(page);
      if (static_cast<int64_t>(pages.size()) == count) return pages;
    }
  return pages;
}

bool Sweep::take_chain(int32_t interval) {
  find_pieces();
  const std::optional<Chain> chain = cheapest(interval);
  if (!chain) return false;
  const int64_t bytes = problem_.bytes[interval];
  std::vector<int64_t> pages;
  if (chain->head > 0) pages.push_back(chain->head_page);
  const int64_t whole = page_of(bytes - chain->head) + (chain->tail_page == fresh_page ? 1 : 0);
  llvm::append_range(pages, whole_pages(whole, chain->head > 0 ? chain->head_page + 1 : no_page));
  if (chain->tail_page >= 0) pages.push_back(chain->tail_page);
  Ranges ranges;
  const int64_t begin = chain->head > 0 ? page_ - chain->head : 0;
  bool is_one_run = true;
  int64_t left = bytes;
  for (size_t i = 0; i < pages.size(); ++i) {
    const int64_t from = pages[i] * page_ + (i == 0 ? begin : 0);
    const int64_t part = std::min(left, (pages[i] + 1) * page_ - from);
    if (i > 0 && pages[i] == pages[i - 1] + 1) {
      ranges.back().to += part;
    } else {
      is_one_run &= i == 0;
      ranges.push_back({from, from + part});
    }
    left -= part;
  }
  if (is_one_run) pages.clear();
  take(interval, {std::move(ranges), std::move(pages)});
  return true;
}

bool Sweep::put(int32_t interval) {
  return (problem_.bytes[interval] < page_ && take_hole(interval)) || take_chain(interval);
}

void Sweep::let_end(int32_t now) {
  for (; !alive_.empty() && alive_.top().first < now; alive_.pop())
    for (const Range& range : places_[alive_.top().second].ranges) free_.give_back(range);
}

// To where those of the order that come before the index have their places, and no others.
void Sweep::go_back(size_t index) {
  free_ = FreeRanges(height_bytes_);
  alive_ = {};
  const int32_t now = problem_.intervals[problem_.order[index]].first;
  std::fill(end_of_.begin(), end_of_.end(), 0);
  for (size_t n = 0; n < index; ++n)
    if (const int32_t i = problem_.order[n]; problem_.last[n] >= now) take(i, std::move(places_[i]));
}

// Where something finds no place, some of those before it are placed by other weights, more of them each time, and a
// few again after that: what is in the way is mostly near.
bool Sweep::place(int64_t& work, size_t most_back) {
  constexpr size_t least_back = 8;
  size_t farthest = 0, back = least_back;
  for (size_t n = 0; n < problem_.order.size();) {
    if (work-- <= 0) return false;
    let_end(problem_.intervals[problem_.order[n]].first);
    if (put(problem_.order[n])) {
      ++n;
      continue;
    }
    back = n > farthest || 2 * back > most_back ? least_back : 2 * back;
    farthest = std::max(farthest, n);
    n -= std::min(back, n);
    go_back(n);
    weights_ = more_weights_.next();
  }
  return true;
}

PagedPlacement Sweep::placement() const {
  PagedPlacement placement;
  int64_t pages_end = 0;
  for (int32_t i : problem_.order)
    for (const Range& range : places_[i].ranges) pages_end = std::max(pages_end, range.to);
  placement.height_bytes = pages_end + problem_.apart_bytes;
  placement.lower_bound_bytes = problem_.peak_bytes;
  std::map<std::vector<int64_t>, int64_t> begin_of;  // of windows, by their pages
  int64_t end = windows_begin;
  for (size_t i = 0; i < places_.size(); ++i) {
    const Place& place = places_[i];
    if (problem_.offset_apart[i] >= 0) {
      placement.offsets.push_back(pages_end + problem_.offset_apart[i]);
      continue;
    }
    if (place.pages.empty()) {
      placement.offsets.push_back(place.ranges.front().from);
      continue;
    }
    const auto [window, is_new] = begin_of.try_emplace(place.pages, end);
    if (is_new) {
      placement.windows.push_back(place.pages);
      end += static_cast<int64_t>(place.pages.size()) * page_;
    }
    placement.offsets.push_back(window->second + in_page(place.ranges.front().from));
  }
  return placement;
}

// Which short buffers lie apart, and how many buffers at most are placed again at a time: some layouts are found only
// one way.
struct Way {
  double most_of_time;
  size_t most_back;
};
constexpr std::array<Way, 3> ways = {{{0.95, 128}, {0.8, 64}, {0.8, 256}}};

// Heights that are tried for what lies in pages, as shares above the lower bound of all.
constexpr std::array<double, 22> shares = {0,      0.001, 0.002, 0.003, 0.004, 0.005, 0.0065, 0.008,
                                           0.0095, 0.011, 0.012, 0.014, 0.016, 0.018, 0.02,   0.03,
                                           0.04,   0.06,  0.08,  0.12,  0.25,  0.5};

// How often all intervals are placed for the first height, and of the others before more is tried, and how much more.
constexpr int first_tries = 2, few_tries = 10, more_tries = 4;
// Of more than so many, only few are tried: where there are many, little is in vain.
constexpr int64_t most_placed = 100'000;

}  // namespace

std::optional<PagedPlacement> place_in_pages(llvm::ArrayRef<Interval> intervals, int64_t alignment, int64_t page_bytes,
                                             int tries, double enough_share, int64_t below_bytes) {
  std::vector<Problem> problems;
  for (const Way& way : ways) problems.emplace_back(intervals, alignment, page_bytes, way.most_of_time);
  std::optional<PagedPlacement> best;
  const auto height_bytes = [&] { return best ? best->height_bytes : below_bytes; };
  const auto once = static_cast<int64_t>(intervals.size());
  const auto place = [&](size_t way, int64_t within_bytes, int times) {
    Sweep sweep(problems[way], std::max<int64_t>(within_bytes - problems[way].apart_bytes, 0));
    int64_t work = times * once;
    if (!sweep.place(work, ways[way].most_back)) return false;
    if (PagedPlacement placed = sweep.placement(); placed.height_bytes < height_bytes()) best = std::move(placed);
    return true;
  };
  const int64_t peak_bytes = problems.front().peak_bytes;
  std::vector<int64_t> heights;
  for (double share : shares)
    heights.push_back(align_up(static_cast<int64_t>((1 + share) * static_cast<double>(peak_bytes)), alignment));
  const bool is_known = below_bytes < std::numeric_limits<int64_t>::max();
  size_t at = 0;
  if (is_known) {
    while (at < heights.size() && heights[at] < below_bytes) ++at;
  } else {
    for (bool is_placed = false; !is_placed; is_placed = place(0, heights[at++], first_tries))
      if (at == heights.size()) heights.push_back(2 * heights.back());
    --at;
  }
  const int few = std::min(tries, few_tries);
  const auto most = std::max(few, static_cast<int>(std::min<int64_t>(tries, most_placed / std::max<int64_t>(once, 1))));
  if (is_known && most == few) return std::nullopt;
  int first = is_known ? std::min(most, few * more_tries) : few;
  const auto place_lower = [&] {
    for (int times = std::exchange(first, few);; times = std::min(most, times * more_tries)) {
      for (size_t way = 0; way < ways.size(); ++way)
        if (place(way, heights[at - 1], times)) return true;
      if (times == most) return false;
    }
  };
  const auto is_enough = [&] {
    return height_bytes() <= static_cast<int64_t>((1 + enough_share) * static_cast<double>(peak_bytes));
  };
  while (at > 0 && !is_enough() && place_lower()) --at;
  return best;
}

}  // namespace plimsoll
