#include "passes/partition/stage_cuts.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace plimsoll {
namespace {

bool has_less_time_per_byte(const StageSaving& a, const StageSaving& b) {
  return a.us * static_cast<double>(b.bytes) < b.us * static_cast<double>(a.bytes);
}

// A run of blocks that grows at its front. While a stage takes a micro-batch through a block, it keeps the values of
// the blocks before for this micro-batch, and of all blocks for the others.
class Run {
 public:
  // `border_us` is that behind the run, 0 for the last one.
  Run(const StageLimit& limit, double border_us) : limit_(limit), us_(border_us) {}

  void add_front(const StageBlock& block) {
    if (front_) {
      plain_ = plain_.behind(*front_, front_->kept_bytes);
      const bool may_make_again = limit_.recompute && front_->received_bytes > 0 && std::isfinite(block.again_us);
      remat_ = remat_.behind(*front_, least_kept(*front_) - (may_make_again ? front_->received_bytes : 0));
      if (may_make_again) fresh_.push_back({front_->received_bytes, block.again_us});
    }
    front_ = &block;
    us_ += block.us;
    cut_.state_bytes += block.bytes;
    step_bytes_ += block.step_bytes;
    host_bytes_ += block.host_bytes;
    if (limit_.recompute) fresh_.insert(fresh_.end(), block.remats.begin(), block.remats.end());
  }

  // The stage lacks as much, however many blocks are added in front.
  int64_t lacks_at_least() const { return cut_.state_bytes + step_bytes_ - on_host() - limit_.bytes; }

  // Describes the run as the blocks from `first` on, where the border before them takes so long.
  StageCut cut(size_t first, double border_us) {
    StageCut cut = cut_;
    cut.first = first;
    const int64_t throughout = cut.state_bytes + step_bytes_;
    cut.needs_bytes = throughout + plain_.behind(*front_, front_->kept_bytes).bytes(limit_.micro_batches);
    cut.least_bytes = throughout + remat_.behind(*front_, least_kept(*front_)).bytes(limit_.micro_batches) - on_host();
    cut.lacks_bytes = cut.least_bytes - limit_.bytes;
    cut.us = us_ + border_us;
    if (cut.lacks_bytes <= 0) cut.added_us = us_to_save(cut.needs_bytes - limit_.bytes, cut.us);
    cut.us += cut.added_us;
    return cut;
  }

 private:
  struct Values {
    int64_t kept = 0, peak = 0;
    // Gives these values behind a block that keeps so much.
    Values behind(const StageBlock& block, int64_t block_kept) const {
      return {kept + block_kept, std::max(block.peak_bytes, block_kept + peak)};
    }
    int64_t bytes(int64_t micro_batches) const { return (micro_batches - 1) * kept + peak; }
  };

  int64_t least_kept(const StageBlock& block) const {
    int64_t kept = block.kept_bytes;
    if (limit_.recompute)
      for (const StageSaving& each : block.remats) kept -= each.bytes;
    return kept;
  }

  // Most runs need none.
  void sort_remats() {
    llvm::stable_sort(fresh_, has_less_time_per_byte);
    const auto middle = static_cast<std::ptrdiff_t>(remats_.size());
    remats_.insert(remats_.end(), fresh_.begin(), fresh_.end());
    std::inplace_merge(remats_.begin(), remats_.begin() + middle, remats_.end(), has_less_time_per_byte);
    fresh_.clear();
  }

  int64_t on_host() const { return std::min(host_bytes_, limit_.host_bytes); }

  // The cheapest ways per byte first, the last of them in part. Copies run beside computing, as far as it lasts.
  double us_to_save(int64_t bytes, double busy_us) {
    if (bytes <= 0) return 0;
    sort_remats();
    auto lacks = static_cast<double>(bytes);
    double us = 0, copied = 0;
    const auto copy = [&] {
      copied = std::min(lacks, static_cast<double>(on_host()));
      lacks -= copied;
      us += copied * limit_.held_up_us_per_byte;
    };
    bool may_copy = on_host() > 0;
    for (const StageSaving& each : remats_) {
      const double saved = static_cast<double>(each.bytes * limit_.micro_batches);
      if (may_copy && limit_.held_up_us_per_byte * saved <= each.us) copy(), may_copy = false;
      if (lacks <= 0) break;
      const double share = std::min(1.0, lacks / saved);
      us += share * each.us;
      lacks -= share * saved;
    }
    if (may_copy && lacks > 0) copy();
    return us + std::max(0.0, copied * limit_.host_us_per_byte - busy_us);
  }

  const StageLimit& limit_;
  StageCut cut_;
  double us_;
  int64_t step_bytes_ = 0, host_bytes_ = 0;
  const StageBlock* front_ = nullptr;
  Values plain_, remat_;                     // of the blocks behind the front
  std::vector<StageSaving> remats_, fresh_;  // sorted, and not yet
};

// What some stages cost together is the largest of each figure.
struct Cost {
  int64_t lacks_bytes = 0;
  double us = 0;
  int64_t state_bytes = 0;
  friend bool operator<(const Cost& a, const Cost& b) {
    return std::tie(a.lacks_bytes, a.us, a.state_bytes) < std::tie(b.lacks_bytes, b.us, b.state_bytes);
  }
};

Cost worst(const Cost& before, const StageCut& cut) {
  return {std::max({before.lacks_bytes, cut.lacks_bytes, int64_t{0}}), std::max(before.us, cut.us),
          std::max(before.state_bytes, cut.state_bytes)};
}

constexpr Cost impossible{std::numeric_limits<int64_t>::max(), std::numeric_limits<double>::infinity(), 0};

}  // namespace

std::vector<StageCut> cut_stages(llvm::ArrayRef<llvm::ArrayRef<StageBlock>> blocks, llvm::ArrayRef<StageLimit> limits) {
  struct Best {
    Cost cost = impossible;
    StageCut last;
  };
  const size_t stages = limits.size(), n = blocks.front().size();
  // best[s][i]: the first i blocks on the stages up to s.
  std::vector<std::vector<Best>> best(stages, std::vector<Best>(n + 1));
  for (size_t s = 0; s < stages; ++s)
    for (size_t i = s + 1; i + (stages - 1 - s) <= n; ++i) {
      if (s + 1 == stages && i < n) continue;
      Run run(limits[s], i < n ? blocks[s][i - 1].border_us : 0);
      for (size_t first = i; first-- > s;) {
        run.add_front(blocks[s][first]);
        if (s == 0 && first > 0) continue;
        StageCut cut = run.cut(first, first > 0 ? blocks[s][first - 1].border_us : 0);
        if (llvm::is_contained(limits[s].too_large, std::pair(first, i))) cut.lacks_bytes += unknown_lack;
        const Cost cost = worst(s == 0 ? Cost{} : best[s - 1][first].cost, cut);
        if (cost < best[s][i].cost) best[s][i] = {cost, cut};
        if (run.lacks_at_least() > best[s][i].cost.lacks_bytes) break;
      }
    }
  std::vector<StageCut> cuts(stages);
  for (size_t s = stages, i = n; s-- > 0; i = cuts[s].first) cuts[s] = best[s][i].last;
  return cuts;
}

}  // namespace plimsoll
