#include "passes/partition/stage_cuts.h"
#include "passes/partition/pipeline_schedule.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>

// Cuts into stages on tables: against every cut there is, and by hand.

namespace plimsoll {
namespace {

using Lists = llvm::SmallVector<llvm::ArrayRef<StageBlock>>;

std::vector<size_t> firsts_of(llvm::ArrayRef<StageCut> cuts) {
  std::vector<size_t> firsts;
  for (const StageCut& cut : cuts) firsts.push_back(cut.first);
  return firsts;
}

// Of one way to cut: the most bytes that a stage lacks, then the longest time of a stage. Bytes and times follow the
// definitions, block by block.
std::pair<int64_t, double> cost_of(llvm::ArrayRef<size_t> firsts, const Lists& blocks,
                                   llvm::ArrayRef<StageLimit> limits) {
  int64_t lacks = 0;
  double slowest = 0;
  for (size_t s = 0; s < limits.size(); ++s) {
    const llvm::ArrayRef<StageBlock> own = blocks[s];
    const size_t end = s + 1 < firsts.size() ? firsts[s + 1] : own.size();
    double us = 0;
    int64_t bytes = 0, kept = 0, kept_least = 0, peak = 0, peak_least = 0;
    std::vector<StageSaving> remats;
    for (size_t b = firsts[s]; b < end; ++b) {
      us += own[b].us;
      int64_t least = own[b].kept_bytes;
      for (const StageSaving& each : own[b].remats) least -= each.bytes, remats.push_back(each);
      if (b > firsts[s] && own[b].received_bytes > 0 && std::isfinite(own[b - 1].again_us)) {
        least -= own[b].received_bytes;
        remats.push_back({own[b].received_bytes, own[b - 1].again_us});
      }
      bytes += own[b].bytes + own[b].step_bytes;
      peak = std::max(peak, kept + own[b].peak_bytes);
      peak_least = std::max(peak_least, kept_least + own[b].peak_bytes);
      kept += own[b].kept_bytes;
      kept_least += least;
    }
    const int64_t others = limits[s].micro_batches - 1;
    std::stable_sort(remats.begin(), remats.end(), [](const StageSaving& a, const StageSaving& b) {
      return a.us * static_cast<double>(b.bytes) < b.us * static_cast<double>(a.bytes);
    });
    auto shortage = static_cast<double>(bytes + others * kept + peak - limits[s].bytes);
    for (const StageSaving& each : remats) {
      const auto saved = static_cast<double>(each.bytes * limits[s].micro_batches);
      if (shortage > 0) us += std::min(1.0, shortage / saved) * each.us;
      shortage -= saved;
    }
    lacks = std::max(lacks, bytes + others * kept_least + peak_least - limits[s].bytes);
    if (s > 0) us += own[firsts[s] - 1].border_us;
    if (s + 1 < firsts.size()) us += own[end - 1].border_us;
    slowest = std::max(slowest, us);
  }
  return {lacks, slowest};
}

TEST_SUITE("unit") {
  TEST_CASE("stages on unlike devices are cut as well as any cut could") {
    std::mt19937 random(5);
    auto below = [&](uint32_t limit) { return static_cast<int64_t>(random() % limit); };
    int tight = 0, lacking = 0;
    for (int i = 0; i < 600; ++i) {
      const size_t n = 2 + random() % 11, stages = 1 + random() % std::min<size_t>(n, 4);
      std::vector<std::vector<StageBlock>> lists(stages, std::vector<StageBlock>(n));
      for (size_t b = 0; b < n; ++b) {
        StageBlock block;
        block.bytes = below(5), block.step_bytes = below(3), block.kept_bytes = 4 + below(9);
        if (random() % 2) block.received_bytes = 2, block.kept_bytes += 2;
        if (random() % 2) block.again_us = static_cast<double>(below(7));
        block.peak_bytes = block.kept_bytes + below(6);
        for (int64_t left = block.kept_bytes - block.received_bytes; left > 2; left -= 2)
          if (random() % 3 == 0) block.remats.push_back({2, static_cast<double>(below(7))});
        std::stable_sort(block.remats.begin(), block.remats.end(),
                         [](const StageSaving& x, const StageSaving& y) { return x.us < y.us; });
        for (std::vector<StageBlock>& list : lists) {
          block.us = static_cast<double>(below(9)), block.border_us = static_cast<double>(below(4));
          list[b] = block;
        }
      }
      std::vector<StageLimit> limits(stages);
      for (size_t s = 0; s < stages; ++s) {
        limits[s].micro_batches = static_cast<int64_t>(stages - s);
        if (i % 3 != 0) limits[s].bytes = 20 + below(120);
      }
      const Lists blocks(lists.begin(), lists.end());
      std::vector<size_t> tried(stages, 0);
      std::pair<int64_t, double> best{std::numeric_limits<int64_t>::max(), 0};
      auto try_all = [&](auto&& self, size_t s, size_t from) -> void {
        if (s == stages) return void(best = std::min(best, cost_of(tried, blocks, limits)));
        for (size_t at = from; at + (stages - s) <= n; ++at) tried[s] = at, self(self, s + 1, at + 1);
      };
      try_all(try_all, 1, 1);
      const std::vector<StageCut> cuts = cut_stages(blocks, limits);
      const std::pair<int64_t, double> got = cost_of(firsts_of(cuts), blocks, limits);
      CHECK(got.first == best.first);
      if (best.first == 0) CHECK(got.second == doctest::Approx(best.second));
      lacking += best.first > 0;
      for (const StageCut& cut : cuts) tight += best.first == 0 && cut.added_us > 0;
    }
    CHECK(tight > 20);
    CHECK(lacking > 20);
  }

  // Eight equal blocks, 10 us and 4 GiB of states each; the second device takes 30 us for each. k blocks on the first
  // take 10 k, the others 30 (8 - k): 60 us for 6 and 2.
  TEST_CASE("a faster device has more of the blocks, and one with little room fewer") {
    constexpr int64_t gib = int64_t{1} << 30;
    const std::vector<StageBlock> fast(8, {.us = 10, .bytes = 4 * gib}), slow(8, {.us = 30, .bytes = 4 * gib});
    std::vector<StageLimit> limits(2);
    CHECK(firsts_of(cut_stages({fast, slow}, limits)) == std::vector<size_t>{0, 6});
    CHECK(firsts_of(cut_stages({slow, fast}, limits)) == std::vector<size_t>{0, 2});
    CHECK(firsts_of(cut_stages({fast, fast}, limits)) == std::vector<size_t>{0, 4});
    limits[0].bytes = 20 * gib;  // five blocks
    CHECK(firsts_of(cut_stages({fast, slow}, limits)) == std::vector<size_t>{0, 5});
    // Of 32 GiB the stages have room for 20 + 8: one lacks 4 GiB with five and three blocks, or with six and two.
    limits[1].bytes = 8 * gib;
    const std::vector<StageCut> lacking = cut_stages({fast, slow}, limits);
    CHECK(lacking[1].first == 6);
    CHECK(lacking[0].least_bytes - limits[0].bytes == 4 * gib);
  }

  // Four blocks keep 3 bytes per micro-batch, of which 2 can be made again in 1 us, and peak at 5 in the last one.
  // The first stage keeps two micro-batches. Three blocks need 9 for the other one and 3 + 3 + 5 for its own: 20 bytes.
  // With remats they keep 1 each: 3 + (1 + 1 + 5) = 10.
  TEST_CASE("what a stage keeps in flight counts, and remats have their price") {
    StageBlock block{.us = 10, .kept_bytes = 3, .peak_bytes = 5};
    block.remats = {{.bytes = 2, .us = 1}};
    const std::vector<StageBlock> blocks(4, block);
    std::vector<StageLimit> limits(2);
    limits[0].micro_batches = 2;
    std::vector<StageCut> cuts = cut_stages({blocks, blocks}, limits);
    CHECK(cuts[1].first == 2);
    CHECK(cuts[0].needs_bytes == 2 * 3 + 3 + 5);
    CHECK(cuts[1].needs_bytes == 3 + 5);
    CHECK(cuts[0].least_bytes == 2 * 1 + 1 + 5);
    // 4 bytes short: one remat frees 2 bytes of each of two micro-batches.
    limits[0].bytes = 10;
    cuts = cut_stages({blocks, blocks}, limits);
    CHECK(cuts[1].first == 2);
    CHECK(cuts[0].us == doctest::Approx(21));
    CHECK(cuts[0].added_us == doctest::Approx(1));
    // 8 bytes are all that two blocks have with remats; with fewer the first stage has one block.
    limits[0].bytes = 7;
    CHECK(cut_stages({blocks, blocks}, limits)[1].first == 1);
    limits[0] = {.bytes = 13, .micro_batches = 2, .recompute = false};
    CHECK(cut_stages({blocks, blocks}, limits)[1].first == 1);
  }

  // 100 bytes of states, 60 of them may be on the host; copies take 1 us per byte and hold computing up for 0.1.
  TEST_CASE("states on the host cost what computing does not hide") {
    const std::vector<StageBlock> blocks(1, {.us = 30, .bytes = 100, .host_bytes = 60});
    StageLimit limit{.bytes = 80, .host_bytes = 1000, .host_us_per_byte = 1, .held_up_us_per_byte = 0.1};
    // 20 bytes hide behind 30 us.
    CHECK(cut_stages({blocks}, {limit}).front().added_us == doctest::Approx(2));
    // 60 bytes take 30 us more than computing.
    limit.bytes = 40;
    CHECK(cut_stages({blocks}, {limit}).front().added_us == doctest::Approx(36));
    CHECK(cut_stages({blocks}, {limit}).front().least_bytes == 40);
    limit.host_bytes = 50;
    CHECK(cut_stages({blocks}, {limit}).front().least_bytes == 50);
  }

  TEST_CASE("1f1b keeps fewer micro-batches on later stages, a zero bubble as many on each at most") {
    const std::vector<StageTimes> times(4, {1, 1, 1});
    std::vector<int64_t> usual, zero_bubble;
    const StageRuns in_order{PipelineSchedule::OneForwardOneBackward, 4};
    for (const auto& actions : actions_of_stages(in_order, times, 8)) usual.push_back(most_kept(actions));
    for (const auto& actions : actions_of_stages({PipelineSchedule::ZeroBubble, 4}, times, 8))
      zero_bubble.push_back(most_kept(actions));
    CHECK(usual == std::vector<int64_t>{4, 3, 2, 1});
    for (int64_t kept : zero_bubble) CHECK(kept <= 4);
    // One micro-batch is all there is.
    CHECK(most_kept(actions_of_stages(in_order, times, 1).front()) == 1);
  }
}

}  // namespace
}  // namespace plimsoll
