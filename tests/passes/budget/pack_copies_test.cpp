#include "passes/budget/pack_copies.h"

#include "passes/offload/offload_rewrite.h"
#include "passes/remat/remat_problem.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/budget_jobs.h"
#include "tests/support/fit_problems.h"
#include "tests/support/small_training.h"

#include <doctest/doctest.h>

// Layouts of copies against a check of all pairs of buffers and a simulation of the engines of their own.

namespace plimsoll {
namespace {

using namespace testing;

// A function whose states are all on the host, with its copies in their places.
struct Streamed {
  Graph graph;
  std::vector<NodeId> writers;
  CpuCatalog catalog;
  RematProblem problem;

  explicit Streamed(llvm::StringRef text) : graph(parsed(text)), writers(make_updates_writable(graph)) {
    llvm::StringSet<> states;
    for (const State& state : graph.states) states.insert(graph.value(state.value).name);
    move_states_to_host(graph, writers, states);
    problem = graph_remat_problem(graph, writers, device_with_host(), catalog).problem;
  }

  FunctionWithCopies function() const { return {graph, writers, catalog, problem}; }
};

constexpr int64_t alignment = 64;

PlacementOptions placement_options() {
  PlacementOptions options;
  options.alignment = alignment;
  options.seconds = 0.2;
  return options;
}

// States of random sizes. Each is read, and `distance` states later it is read again and updated, so that one more are
// there at a time and others come and go beside them.
std::string updates_of(std::mt19937& random, int states, int distance = 2) {
  std::string list, body;
  std::vector<std::string> types;
  const auto update = [&](int i) {
    const std::string id = std::to_string(i);
    body += "%m" + id + " = mul(%a" + id + ", %w" + id + ")" + types[static_cast<size_t>(i)] + " phase=update\n";
  };
  for (int i = 0; i < states; ++i) {
    const std::string id = std::to_string(i), type = "f32[" + std::to_string(64 * (1 + pick(random, 40))) + "]";
    list += (i == 0 ? "%w" : ", %w") + id + ": " + type + " parameter trained";
    types.push_back(" : " + type);
    body += "%a" + id + " = exp(%w" + id + ")" + types.back() + "\n";
    if (i >= distance) update(i - distance);
  }
  for (int i = std::max(0, states - distance); i < states; ++i) update(i);
  std::string text =
      "graph @updates(%x: f32[16]) state(" + list + ") {\n" + body + "%y = exp(%x) : f32[16]\nreturn %y\n";
  for (int i = 0; i < states; ++i) text += "update %w" + std::to_string(i) + " = %m" + std::to_string(i) + "\n";
  return text + "}\n";
}

// Everything that a layout promises, once its copies are issued where it says.
void check_layout(const Streamed& streamed, const PackedCopies& packed) {
  Graph graph = streamed.graph;
  const std::vector<CopyInFlight> copies = issue_copies(graph, packed.overlap.intervals);
  const BufferAssignment assigned = assign_buffers(graph, streamed.writers, copies, streamed.catalog);
  const BufferPlacement placed = placement_of(packed, graph, assigned, alignment);
  CHECK(placed.height_bytes == packed.height_bytes);
  CHECK(placed.peak_bytes == packed.live_bytes);
  CHECK(packed.overlap.total_us == doctest::Approx(total_us(streamed.problem, packed.overlap.intervals)));
  size_t collisions = 0;
  for (size_t a = 0; a < assigned.buffers.size(); ++a)
    for (size_t b = 0; b < a; ++b) {
      if (placed.offset[a] < 0 || placed.offset[b] < 0) continue;
      const Buffer &one = assigned.buffers[a], &other = assigned.buffers[b];
      collisions += one.first <= other.last && other.first <= one.last &&
                    placed.offset[a] < placed.offset[b] + other.bytes &&
                    placed.offset[b] < placed.offset[a] + one.bytes;
    }
  CHECK(collisions == 0);
}

PackedCopies layout(int64_t height_bytes, double us, int64_t live_bytes) {
  PackedCopies packed;
  packed.height_bytes = height_bytes;
  packed.live_bytes = live_bytes;
  packed.overlap.total_us = us;
  return packed;
}

std::vector<int64_t> heights_worth_trying(std::vector<PackedCopies> layouts) {
  std::vector<int64_t> heights;
  for (const PackedCopies& each : worth_trying(std::move(layouts))) heights.push_back(each.height_bytes);
  return heights;
}

// By some starts.
std::optional<PackedCopies> packed_tightly(const Streamed& streamed, const Overlap& wide, KnownLayouts& known) {
  const std::optional<PackedCopies> one = pack_tightly(streamed.function(), wide, placement_options(), known);
  if (!one) return std::nullopt;
  return pack_more_tightly(streamed.function(), wide, *one, placement_options(), known);
}

TEST_SUITE("unit") {
  TEST_CASE("pack copies: layouts within what is alive, whose copies do not collide and take the time they say") {
    std::mt19937 random(7);
    int found = 0, shorter = 0, stepped = 0, wasteful = 0;
    for (int round = 0; round < 8; ++round) {
      const Streamed streamed(updates_of(random, 20 + 5 * round));
      for (const Overlap& wide : overlap_levels(streamed.problem, std::numeric_limits<int64_t>::max())) {
        KnownLayouts known, none_known;
        const std::optional<PackedCopies> tight = packed_tightly(streamed, wide, known);
        if (!tight) continue;
        ++found;
        check_layout(streamed, *tight);
        CHECK(tight->height_bytes <= static_cast<int64_t>(1.025 * static_cast<double>(wide.peak_bytes)) + alignment);
        CHECK(tight->overlap.total_us >= wide.total_us);
        shorter += tight->overlap.intervals != wide.intervals;
        wasteful += static_cast<double>(tight->height_bytes) > max_waste * static_cast<double>(tight->live_bytes);

        const std::vector<PackedCopies> layouts =
            pack_step_by_step(streamed.function(), wide, *tight, placement_options(), known);
        const std::vector<PackedCopies> anew =
            pack_step_by_step(streamed.function(), wide, *tight, placement_options(), none_known);
        REQUIRE(!layouts.empty());
        REQUIRE(layouts.size() == anew.size());
        for (size_t i = 0; i < layouts.size(); ++i) {
          CHECK(layouts[i].offset_of_value == anew[i].offset_of_value);
          CHECK(layouts[i].overlap.intervals == anew[i].overlap.intervals);
        }
        CHECK(layouts.back().height_bytes >= tight->height_bytes);
        CHECK(layouts.back().overlap.total_us <= max_slowdown * tight->overlap.total_us);
        for (size_t i = 0; i < layouts.size(); ++i) {
          check_layout(streamed, layouts[i]);
          CHECK(layouts[i].overlap.total_us >= wide.total_us);
          if (i == 0) continue;
          ++stepped;
          CHECK(layouts[i].height_bytes < layouts[i - 1].height_bytes);
          CHECK(layouts[i].overlap.total_us > layouts[i - 1].overlap.total_us);
        }
      }
    }
    CHECK(found > 10);
    CHECK(shorter > 5);
    CHECK(wasteful < 3);
    CHECK(stepped > 0);
  }

  TEST_CASE("pack copies: the same layout each time") {
    std::mt19937 random(8);
    const Streamed streamed(updates_of(random, 40));
    const Overlap wide = overlap_levels(streamed.problem, std::numeric_limits<int64_t>::max()).back();
    KnownLayouts known, known_again;
    const std::optional<PackedCopies> one = packed_tightly(streamed, wide, known),
                                      again = packed_tightly(streamed, wide, known_again);
    REQUIRE(one);
    REQUIRE(again);
    CHECK(one->offset_of_value == again->offset_of_value);
    CHECK(one->overlap.intervals == again->overlap.intervals);
  }

  TEST_CASE("pack copies: some starts find layouts that waste less than what one finds") {
    std::mt19937 random(9);
    double wasted_by_one = 0, wasted_by_some = 0;
    for (int round = 0; round < 8; ++round) {
      const Streamed streamed(updates_of(random, 120, 6));
      const Overlap wide = overlap_levels(streamed.problem, std::numeric_limits<int64_t>::max()).front();
      KnownLayouts known;
      const std::optional<PackedCopies> one = pack_tightly(streamed.function(), wide, placement_options(), known);
      if (!one) continue;
      const PackedCopies some = pack_more_tightly(streamed.function(), wide, *one, placement_options(), known);
      check_layout(streamed, some);
      const auto waste = [](const PackedCopies& packed) {
        return static_cast<double>(packed.height_bytes) / static_cast<double>(packed.live_bytes) - 1;
      };
      wasted_by_one += waste(*one);
      wasted_by_some += waste(some);
    }
    CHECK(wasted_by_some < 0.9 * wasted_by_one);
  }

  TEST_CASE("pack copies: a layout that is pressed hard wastes less and takes hardly longer") {
    std::mt19937 random(10);
    int wasteful = 0, pressed = 0;
    for (int round = 0; round < 2; ++round) {
      const Streamed streamed(updates_of(random, 60, 6));
      for (const Overlap& wide : overlap_levels(streamed.problem, std::numeric_limits<int64_t>::max())) {
        KnownLayouts known;
        const std::optional<PackedCopies> high = pack_tightly(streamed.function(), wide, placement_options(), known);
        if (!high || !is_wasteful(*high)) continue;
        ++wasteful;
        const std::optional<PackedCopies> low = press_hard(streamed.function(), *high, placement_options());
        if (!low) continue;
        ++pressed;
        check_layout(streamed, *low);
        CHECK(low->height_bytes < high->height_bytes);
        CHECK(low->overlap.total_us >= high->overlap.total_us);
        CHECK(low->overlap.total_us <= max_hard_slowdown * high->overlap.total_us);
      }
    }
    CHECK(wasteful > 0);
    CHECK(2 * pressed >= wasteful);
  }

  TEST_CASE("pack copies: a layout that another one is as good as is not worth trying") {
    // 120 bytes for 10 us, 110 for 11 and 100 for 12. Of the others, one is as high as a faster one, and one is as fast
    // as a lower one. None wastes anything.
    CHECK(heights_worth_trying({layout(120, 10, 120), layout(100, 12, 100), layout(110, 11, 110),
                                layout(120, 10.5, 120), layout(105, 12, 105)}) == std::vector<int64_t>{120, 110, 100});
    CHECK(heights_worth_trying({}).empty());
  }

  TEST_CASE("pack copies: what wastes more than 1 % is not worth trying beside what takes 0.2 % longer") {
    // 1,020 bytes for 1,000 alive give way to 1,005 bytes that take 0.2 % longer, and 1,004 for 1,000 do not.
    CHECK(heights_worth_trying({layout(1020, 1000, 1000), layout(1005, 1002, 1000)}) == std::vector<int64_t>{1005});
    CHECK(heights_worth_trying({layout(1020, 1000, 1000), layout(1005, 1003, 1000)}) ==
          std::vector<int64_t>{1020, 1005});
    CHECK(heights_worth_trying({layout(1004, 1000, 1000), layout(1000, 1002, 1000)}) ==
          std::vector<int64_t>{1004, 1000});
  }
}

}  // namespace
}  // namespace plimsoll
