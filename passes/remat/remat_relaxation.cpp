#include "passes/remat/remat_schedule.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <limits>
#include <utility>

// A linear program bounds the added time from several base ops at once, and counts what an op that runs again needs in
// turn. The schedule is divided into blocks; each but the last ends with an op during which live bytes are limited. A
// value is kept across the end of a block or it is not, and in a block it is made again or it is not, however often.
// What a block reads is kept from the block before, made there for the first time, or made again there; and to make it
// again, what it is made of is there too. Fewer blocks tie more of these choices together and more blocks limit more
// bytes, so neither bound is always the higher one, and the ends of blocks are searched.
//
// A byte at the end of a block has a price, and so has each read by an op that runs again in a block. At given prices
// every value goes its own shortest path through the blocks, and the sum over all values is a valid bound whatever the
// prices are. They come from the primal-dual hybrid gradient method (Chambolle and Pock 2011) with diagonal steps (Pock
// and Chambolle 2011).

namespace plimsoll {
namespace {

using namespace remat;

constexpr double impossible = std::numeric_limits<double>::infinity();
constexpr int32_t stretches = 64;      // equal parts of the schedule; blocks end at the highest op of some of them
constexpr int64_t brief_rounds = 200;  // where ends of blocks are compared: 1 to 12 % below what more rounds find
constexpr int64_t thorough_rounds = 2000;
constexpr int64_t rounds_per_look = 50;  // bounds at the prices so far are taken so often
constexpr double min_rise = 1.002;       // factor by which another end raises the bound, or it is left out
constexpr double pace = 0.3;             // how far prices go for each step of the choices; from 0.1 to 1 hardly matters

// A value in each block behind the one that makes it. Costs are in mean costs of an op, bytes in mean bytes of a value.
struct Path {
  int32_t value, first;  // block
  size_t at;             // of `first`, in arrays by path and block
  double cost;           // of making it again
};

// To make `reader` again, `read` is there: from the first block of the reader on.
struct Need {
  size_t reader, read;  // in arrays by path and block
  size_t at;            // in an array by need and block
  size_t blocks;
};

class Blocks {
 public:
  Blocks(const RematSchedule& plain, int64_t limit, std::vector<int32_t> ends)
      : plain_(plain), problem_(plain.problem()), ends_(std::move(ends)), count_(ends_.size() + 1) {
    find_units();
    find_paths();
    find_reads();
    find_needs();
    find_room(limit);
  }

  // What the ops at the ends touch is within the limit.
  bool are_possible() const {
    return llvm::all_of(room_, [](double room) { return room >= 0; });
  }

  // A lower bound of the added time, after so many rounds of the method.
  double min_added_us(int64_t rounds) {
    start();
    double bound = 0;
    for (int64_t round = 1; round <= rounds; ++round) {
      choose();
      adjust_prices();
      if (round % rounds_per_look == 0) bound = std::max(bound, bound_at_prices());
    }
    return bound * unit_us_;
  }

 private:
  void find_units() {
    for (const RematOp& op : problem_.ops) unit_us_ += op.cost_us;
    for (int64_t bytes : problem_.value_bytes) unit_bytes_ += static_cast<double>(bytes);
    unit_us_ = std::max(unit_us_ / static_cast<double>(problem_.ops.size()), 1e-9);
    unit_bytes_ = std::max(unit_bytes_ / static_cast<double>(problem_.value_bytes.size()), 1.0);
  }

  double bytes(int32_t value) const { return static_cast<double>(problem_.value_bytes[value]) / unit_bytes_; }
  int32_t block_of(int32_t op) const {
    return static_cast<int32_t>(std::lower_bound(ends_.begin(), ends_.end(), op) - ends_.begin());
  }
  bool has_path(int32_t value, int32_t block) const {
    return path_of_[value] >= 0 && paths_[path_of_[value]].first <= block;
  }
  size_t place(int32_t value, int32_t block) const {
    const Path& path = paths_[path_of_[value]];
    return path.at + static_cast<size_t>(block - path.first);
  }

  // Results of one op share its cost.
  void find_paths() {
    path_of_.assign(problem_.value_bytes.size(), -1);
    for (int32_t o = 0; o < problem_.op_count(); ++o) {
      const RematOp& op = problem_.ops[o];
      const int32_t first = block_of(o) + 1;
      if (first >= count()) continue;
      for (int32_t v : op.writes) {
        path_of_[v] = static_cast<int32_t>(paths_.size());
        paths_.push_back({v, first, kept_bytes_.size(), op.cost_us / static_cast<double>(op.writes.size()) / unit_us_});
        for (int32_t block = first; block < count(); ++block) {
          kept_bytes_.push_back(bytes(v));
          may_again_.push_back(op.repeatable && ends_[block - 1] < op.remat_until);
        }
      }
    }
  }

  void find_reads() {
    is_read_.assign(kept_bytes_.size(), 0);
    for (int32_t o = 0; o < problem_.op_count(); ++o)
      for (int32_t v : problem_.ops[o].reads)
        if (const int32_t block = block_of(o); has_path(v, block)) is_read_[place(v, block)] = 1;
    for (const Path& path : paths_)
      if (problem_.live_out[path.value]) is_read_[place(path.value, count() - 1)] = 1;
  }

  void find_needs() {
    size_t at = 0;
    for (const Path& path : paths_)
      for (int32_t v : plain_.op(plain_.producer(path.value)).reads) {
        if (!may_again_[path.at] || !has_path(v, path.first)) continue;
        const auto blocks = static_cast<size_t>(count() - path.first);
        needs_.push_back({path.at, place(v, path.first), at, blocks});
        at += blocks;
      }
    need_price_.assign(at, 0);
  }

  // Bytes at each end that are left for values which the op there does not touch. A result in place of an operand takes
  // bytes only where the operand is kept.
  void find_room(int64_t limit) {
    std::vector<int32_t> last_read(problem_.value_bytes.size(), -1);
    for (int32_t o = 0; o < problem_.op_count(); ++o)
      for (int32_t v : problem_.ops[o].reads) last_read[v] = o;
    room_.assign(count_, 0);
    for (int32_t block = 1; block < count(); ++block) {
      const int32_t end = ends_[block - 1];
      const RematOp& op = problem_.ops[end];
      int64_t room = limit - op.workspace_bytes;
      for (int32_t v = 0; v < static_cast<int32_t>(path_of_.size()); ++v) {
        const bool touched = plain_.touches(end, v);
        const bool waits = plain_.producer(v) < 0 && (problem_.live_out[v] || last_read[v] > end);
        if (touched || waits) room -= problem_.value_bytes[v];
        if (touched && has_path(v, block)) kept_bytes_[place(v, block)] = 0;
      }
      for (const InPlaceReuse& pair : op.in_place) {
        room += problem_.value_bytes[pair.written];
        if (has_path(pair.read, block)) kept_bytes_[place(pair.read, block)] = bytes(pair.written);
      }
      room_[block] = static_cast<double>(room) / unit_bytes_;
    }
  }

  // A step of a choice or a price is the inverse of the sum of the coefficients of its column or row.
  void start() {
    const size_t size = kept_bytes_.size();
    kept_.assign(size, 1), kept_then_.assign(size, 1), keep_step_.assign(size, 0);
    again_.assign(size, 0), again_then_.assign(size, 0), again_step_.assign(size, 0);
    read_price_.assign(size, 0), chain_price_.assign(size, 0);
    byte_price_.assign(count_, 0), byte_step_.assign(count_, 1e-9);
    for (const Path& path : paths_)
      for (int32_t block = path.first; block < count(); ++block) {
        const size_t i = path.at + static_cast<size_t>(block - path.first);
        const double next = block + 1 < count();
        keep_step_[i] = kept_bytes_[i] + is_read_[i] + (block > path.first) + next;
        again_step_[i] = is_read_[i] + next;
        byte_step_[block] += kept_bytes_[i];
      }
    for (const Need& need : needs_)
      for (size_t i = 0; i < need.blocks; ++i) {
        again_step_[need.reader + i] += 1;
        keep_step_[need.read + i] += 1;
        again_step_[need.read + i] += 1;
      }
    for (std::vector<double>* steps : {&keep_step_, &again_step_})
      for (double& step : *steps) step = 1 / (pace * std::max(1.0, step));
    for (double& step : byte_step_) step = pace / step;
  }

  // Moves the choices against their slopes: their costs less what the prices pay for them.
  void choose() {
    keep_slope_.resize(kept_.size()), again_slope_.resize(kept_.size());
    for (const Path& path : paths_)
      for (int32_t block = path.first; block < count(); ++block) {
        const size_t i = path.at + static_cast<size_t>(block - path.first);
        const double paid = read_price_[i] + (block + 1 < count() ? chain_price_[i + 1] : 0);
        keep_slope_[i] = byte_price_[block] * kept_bytes_[i] + chain_price_[i] - paid;
        again_slope_[i] = path.cost - paid;
      }
    for (const Need& need : needs_) {
      const double* price = &need_price_[need.at];
      double *reader = &again_slope_[need.reader], *kept = &keep_slope_[need.read], *again = &again_slope_[need.read];
      for (size_t i = 0; i < need.blocks; ++i) reader[i] += price[i], kept[i] -= price[i], again[i] -= price[i];
    }
    const auto move = [](double& choice, double& then, double by, double most) {
      const double before = choice;
      choice = std::clamp(before - by, 0.0, most);
      then = 2 * choice - before;
    };
    for (size_t i = 0; i < kept_.size(); ++i) {
      move(kept_[i], kept_then_[i], keep_step_[i] * keep_slope_[i], 1);
      move(again_[i], again_then_[i], again_step_[i] * again_slope_[i], may_again_[i]);
    }
  }

  // Raises prices of what the choices violate, and lowers others.
  void adjust_prices() {
    const auto adjust = [](double& price, double by) { price = std::max(0.0, price + by); };
    std::vector<double> excess(count_, 0);
    for (const Path& path : paths_)
      for (int32_t block = path.first; block < count(); ++block) {
        const size_t i = path.at + static_cast<size_t>(block - path.first);
        const double there = kept_then_[i] + again_then_[i];
        excess[block] += kept_bytes_[i] * kept_then_[i];
        if (is_read_[i]) adjust(read_price_[i], pace / 2 * (1 - there));
        if (block + 1 < count()) adjust(chain_price_[i + 1], pace / 3 * (kept_then_[i + 1] - there));
      }
    for (int32_t block = 1; block < count(); ++block)
      adjust(byte_price_[block], byte_step_[block] * (excess[block] - room_[block]));
    for (const Need& need : needs_) {
      double* price = &need_price_[need.at];
      const double *reader = &again_then_[need.reader], *kept = &kept_then_[need.read],
                   *again = &again_then_[need.read];
      for (size_t i = 0; i < need.blocks; ++i) adjust(price[i], pace / 3 * (reader[i] - kept[i] - again[i]));
    }
  }

  double bound_at_prices() const {
    std::vector<double> asked(kept_.size(), 0), paid(kept_.size(), 0);  // for making a value again, for having it
    for (const Need& need : needs_)
      for (size_t i = 0; i < need.blocks; ++i) {
        asked[need.reader + i] += need_price_[need.at + i];
        paid[need.read + i] += need_price_[need.at + i];
      }
    double sum = 0;
    for (int32_t block = 1; block < count(); ++block) sum -= byte_price_[block] * room_[block];
    for (const Path& path : paths_) {
      double there = 0, gone = 0;  // the least that it costs to have the value in a block, and not to have it
      for (int32_t block = path.first; block < count(); ++block) {
        const size_t i = path.at + static_cast<size_t>(block - path.first);
        const double kept = there + byte_price_[block] * kept_bytes_[i], dropped = std::min(there, gone);
        const double again = may_again_[i] ? dropped + path.cost + asked[i] : impossible;
        gone = is_read_[i] ? impossible : dropped;
        there = std::min(kept, again) - paid[i];
      }
      sum += std::min(there, gone);
    }
    return sum;
  }

  int32_t count() const { return static_cast<int32_t>(count_); }

  const RematSchedule& plain_;
  const RematProblem& problem_;
  std::vector<int32_t> ends_;  // ops, sorted; the last block has none
  size_t count_;
  double unit_us_ = 0, unit_bytes_ = 0;
  std::vector<Path> paths_;
  std::vector<int32_t> path_of_;  // by value; -1: it is made in the last block, or by no op
  std::vector<Need> needs_;
  std::vector<double> room_;  // by block, at the end of the one before
  // By path and block: bytes at the end of the block before if the value is kept there, and whether it may be made
  // again and whether a base op reads it in the block.
  std::vector<double> kept_bytes_;
  std::vector<char> may_again_, is_read_;
  // Choices, from 0 to 1; `then` is a step ahead.
  std::vector<double> kept_, again_, kept_then_, again_then_, keep_step_, again_step_, keep_slope_, again_slope_;
  // Prices: of a read by a base op, of keeping what was there in the block before, of a read by an op that runs again,
  // and of a byte.
  std::vector<double> read_price_, chain_price_, need_price_, byte_price_, byte_step_;
};

class BlockSearch {
 public:
  BlockSearch(const RematSchedule& plain, int64_t limit) : plain_(plain), limit_(limit) {}

  // Adds ends, best alone first, and takes those away that do not raise the bound.
  double run() {
    find_candidates();
    for (const auto& [alone_us, end] : candidates_) {
      std::vector<int32_t> more = ends_;
      more.insert(llvm::lower_bound(more, end), end);
      if (const double us = min_us_of(more, brief_rounds); us > min_rise * min_us_) min_us_ = us, ends_ = more;
    }
    for (size_t i = 0; i < ends_.size() && min_us_ < impossible;) {
      std::vector<int32_t> fewer = ends_;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
      const double us = min_us_of(fewer, brief_rounds);
      if (us >= min_us_)
        min_us_ = us, ends_ = fewer;
      else
        ++i;
    }
    return ends_.empty() || min_us_ == impossible ? min_us_ : std::max(min_us_, min_us_of(ends_, thorough_rounds));
  }

 private:
  void find_candidates() {
    const int64_t ops = plain_.problem().op_count();
    const auto live = [&](int32_t op) { return plain_.memory().live({op, op}); };
    for (int64_t i = 0; i < stretches; ++i) {
      const auto begin = static_cast<int32_t>(ops * i / stretches),
                 end = static_cast<int32_t>(ops * (i + 1) / stretches);
      int32_t highest = begin;
      for (int32_t op = begin; op < end; ++op)
        if (live(op) > live(highest)) highest = op;
      if (begin < end && live(highest) > limit_) candidates_.push_back({min_us_of({highest}, brief_rounds), highest});
    }
    llvm::stable_sort(candidates_, [](const auto& a, const auto& b) { return a.first > b.first; });
  }

  double min_us_of(std::vector<int32_t> ends, int64_t rounds) const {
    Blocks blocks(plain_, limit_, std::move(ends));
    return blocks.are_possible() ? blocks.min_added_us(rounds) : impossible;
  }

  const RematSchedule& plain_;
  int64_t limit_;
  std::vector<std::pair<double, int32_t>> candidates_;  // what an end bounds alone, and its op
  std::vector<int32_t> ends_;
  double min_us_ = 0;
};

}  // namespace

double min_added_us_of_blocks(const RematProblem& problem, int64_t limit_bytes) {
  const RematSchedule plain(problem);
  return plain.is_all_compute() ? BlockSearch(plain, limit_bytes).run() : 0;
}

}  // namespace plimsoll
