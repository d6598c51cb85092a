#include "passes/schedule/order.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

// Orders against peaks computed by hand, against every order of small random
// graphs, and for large ones against the rules an order must keep.

namespace {

using namespace plimsoll;

OrderNode node(llvm::ArrayRef<int32_t> inputs, llvm::ArrayRef<int32_t> outputs, int64_t scratch = 0) {
  OrderNode n;
  n.inputs.assign(inputs.begin(), inputs.end());
  n.outputs.assign(outputs.begin(), outputs.end());
  n.scratch_bytes = scratch;
  return n;
}

bool has(llvm::ArrayRef<int32_t> list, int32_t item) { return std::find(list.begin(), list.end(), item) != list.end(); }
bool flag(const std::vector<bool>& flags, size_t i) { return i < flags.size() && flags[i]; }

// Whether `late` has to stay behind `early`, which is before it in the given order.
bool must_follow(const OrderProblem& p, int32_t early, int32_t late) {
  const OrderNode &a = p.nodes[early], &b = p.nodes[late];
  if (has(b.after, early)) return true;
  for (int32_t out : a.outputs)
    if (has(b.inputs, out) || has(b.outputs, out)) return true;
  for (int32_t in : a.inputs)
    if (has(b.outputs, in)) return true;
  return false;
}

bool keeps_the_rules(const OrderProblem& p, const std::vector<int32_t>& order) {
  std::vector<int32_t> position(p.nodes.size(), -1);
  for (size_t i = 0; i < order.size(); ++i) position[order[i]] = static_cast<int32_t>(i);
  if (order.size() != p.nodes.size() || has(position, -1)) return false;
  for (size_t late = 0; late < p.nodes.size(); ++late)
    for (size_t early = 0; early < late; ++early)
      if (must_follow(p, static_cast<int32_t>(early), static_cast<int32_t>(late)) && position[early] > position[late])
        return false;
  return true;
}

// Bytes alive while `now` runs after the nodes in `done`: what is there from the start or touched
// already, and still to be touched or kept to the end.
int64_t bytes_at(const OrderProblem& p, const std::vector<bool>& done, int32_t now) {
  int64_t bytes = p.nodes[now].scratch_bytes;
  for (size_t b = 0; b < p.buffer_bytes.size(); ++b) {
    if (flag(p.pinned, b)) continue;
    int32_t id = static_cast<int32_t>(b);
    bool seen = false, from_start = false, begun = false, to_come = false;
    for (size_t n = 0; n < p.nodes.size(); ++n) {
      bool reads = has(p.nodes[n].inputs, id);
      if (!reads && !has(p.nodes[n].outputs, id)) continue;
      if (!seen) from_start = reads;
      seen = true;
      bool is_now = static_cast<int32_t>(n) == now;
      begun |= is_now || done[n];
      to_come |= is_now || !done[n];
    }
    if (seen && (begun || from_start) && (to_come || flag(p.live_out, b))) bytes += p.buffer_bytes[b];
  }
  return bytes;
}

int64_t peak_by_definition(const OrderProblem& p, const std::vector<int32_t>& order) {
  std::vector<bool> done(p.nodes.size());
  int64_t peak = 0;
  for (int32_t n : order) {
    peak = std::max(peak, bytes_at(p, done, n));
    done[n] = true;
  }
  return peak;
}

// The lowest peak of any order, over all sets of nodes that may have run.
int64_t lowest_peak_by_exhaustion(const OrderProblem& p) {
  size_t n = p.nodes.size();
  constexpr int64_t unreached = std::numeric_limits<int64_t>::max();
  std::vector<uint32_t> needs(n);
  for (size_t late = 0; late < n; ++late)
    for (size_t early = 0; early < late; ++early)
      if (must_follow(p, static_cast<int32_t>(early), static_cast<int32_t>(late))) needs[late] |= 1u << early;
  std::vector<int64_t> peak(size_t{1} << n, unreached);
  peak[0] = 0;
  std::vector<bool> done(n);
  for (uint32_t set = 0; set + 1 < peak.size(); ++set) {
    if (peak[set] == unreached) continue;
    for (size_t i = 0; i < n; ++i) done[i] = set >> i & 1;
    for (size_t i = 0; i < n; ++i) {
      if (done[i] || (needs[i] & ~set) != 0) continue;
      int64_t& reached = peak[set | 1u << i];
      reached = std::min(reached, std::max(peak[set], bytes_at(p, done, static_cast<int32_t>(i))));
    }
  }
  return peak.back();
}

OrderProblem random_problem(std::mt19937& random, int nodes, int reach) {
  OrderProblem p;
  for (int i = 0; i < nodes; ++i) {
    OrderNode n;
    int32_t buffers = static_cast<int32_t>(p.buffer_bytes.size());
    for (uint32_t k = random() % 3; k > 0 && buffers > 0; --k)
      n.inputs.push_back(buffers - 1 - static_cast<int32_t>(random() % std::min(buffers, reach)));
    if (buffers > 0 && random() % 8 == 0) {
      n.outputs.push_back(buffers - 1 - static_cast<int32_t>(random() % std::min(buffers, reach)));
      if (random() % 2 == 0) n.inputs.push_back(n.outputs.back());
    } else {
      n.outputs.push_back(buffers);
      p.buffer_bytes.push_back(1 + random() % 20);
      p.pinned.push_back(random() % 12 == 0);
      p.live_out.push_back(random() % 12 == 0);
    }
    if (i > 0 && random() % 6 == 0) n.after.push_back(i - 1 - static_cast<int32_t>(random() % std::min(i, reach)));
    n.scratch_bytes = random() % 5 == 0 ? random() % 15 : 0;
    p.nodes.push_back(n);
  }
  return p;
}

// Forward keeps one activation a layer; backward makes a weight gradient larger than the activation
// it is made from; all updates stand at the end, as exporters and autodiff leave them.
OrderProblem training_step(int layers, int64_t activation, int64_t weight) {
  OrderProblem p;
  auto buffer = [&](int64_t bytes) {
    p.buffer_bytes.push_back(bytes);
    return static_cast<int32_t>(p.buffer_bytes.size()) - 1;
  };
  std::vector<int32_t> kept = {buffer(activation)}, gradients;
  p.nodes.push_back(node({}, {kept[0]}));
  for (int l = 0; l < layers; ++l) {
    kept.push_back(buffer(activation));
    p.nodes.push_back(node({kept[l]}, {kept[l + 1]}));
  }
  int32_t flow = buffer(activation);
  p.nodes.push_back(node({kept[layers]}, {flow}));
  for (int l = layers - 1; l >= 0; --l) {
    int32_t below = buffer(activation);
    gradients.push_back(buffer(weight));
    p.nodes.push_back(node({flow}, {below}));
    p.nodes.push_back(node({flow, kept[l]}, {gradients.back()}));
    flow = below;
  }
  for (int32_t g : gradients) p.nodes.push_back(node({g}, {}));
  return p;
}

std::vector<int32_t> given(const OrderProblem& p) {
  std::vector<int32_t> order(p.nodes.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

}  // namespace

TEST_CASE("order: an empty problem") {
  CHECK(order_for_low_peak({}).empty());
  CHECK(peak_bytes({}, {}) == 0);
}

TEST_CASE("order: peak counts scratch, kept results and what is there from the start") {
  // 0 reads b0 (4, from the start) and writes b1 (3): 4 + 3 + scratch 2 = 9.
  // 1 reads b1 and writes b2 (5), kept: 3 + 5 = 8.  2 writes b3 (6) beside the kept 5: 11.
  OrderProblem p;
  p.buffer_bytes = {4, 3, 5, 6};
  p.live_out = {false, false, true, false};
  p.nodes = {node({0}, {1}, 2), node({1}, {2}), node({}, {3})};
  CHECK(peak_bytes(p, {0, 1, 2}) == 11);
  // First, 2 meets only the 4 that is there from the start: 10, then as before 9 and 8.
  CHECK(peak_bytes(p, {2, 0, 1}) == 10);
  CHECK(peak_bytes(p, {0, 2, 1}) == 9);  // 9, then 3 + 6, then 8
  CHECK(peak_bytes(p, order_for_low_peak(p)) == 9);
}

TEST_CASE("order: pinned buffers do not count") {
  OrderProblem p;
  p.buffer_bytes = {100, 1};
  p.pinned = {true, false};
  p.nodes = {node({0}, {1})};
  CHECK(peak_bytes(p, {0}) == 1);
}

TEST_CASE("order: the branch with the larger valley goes first") {
  // Two branches grow to 10 and end in 1 and 3. As given, all grow first: 10 + 10 = 20, and the first to
  // shrink needs 1 or 3 more. One after the other: 10 + 3 = 13 in the first, then 3 + 10 + 1 = 14 or,
  // with the other first, 10 + 1 = 11 and 1 + 10 + 3 = 14.
  OrderProblem p;
  p.buffer_bytes = {10, 10, 1, 3, 1};
  p.nodes = {node({}, {0}), node({}, {1}), node({0}, {2}), node({1}, {3}), node({2, 3}, {4})};
  CHECK(peak_bytes(p, given(p)) == 21);
  CHECK(peak_bytes(p, order_for_low_peak(p)) == 14);
}

TEST_CASE("order: in-place writers stay behind the readers of the old value") {
  // 1 reads b0, 2 updates b0 in place, 3 reads the new value. Only 0 1 2 3 is right.
  OrderProblem p;
  p.buffer_bytes = {8, 2, 1};
  p.nodes = {node({}, {0}), node({0}, {1}), node({0}, {0}), node({0, 1}, {2})};
  CHECK(order_for_low_peak(p) == std::vector<int32_t>{0, 1, 2, 3});
}

TEST_CASE("order: updates run as soon as their gradients exist") {
  // 30 layers, activations of 10, weight gradients of 25. As given, the gradients pile up: at the
  // last of them 30 * 25 + flow 10 + kept 10 = 770.
  OrderProblem p = training_step(30, 10, 25);
  CHECK(peak_bytes(p, given(p)) == 770);
  // At the first gradient the kept 0..29, the flow and the gradient itself meet, 300 + 10 + 25 = 335;
  // with the flow below made first it would be 345. Everything else can stay under that.
  std::vector<int32_t> order = order_for_low_peak(p);
  CHECK(keeps_the_rules(p, order));
  CHECK(peak_bytes(p, order) == 335);
}

TEST_CASE("order: what frees memory runs as soon as it fits below the peak") {
  // The peak is at 2: 10 + 10 + 80. Then 5, which turns b0 into b3, would need 20 + 4 + 85 beside b1 and 10 + 4 + 85
  // behind 3, and so need not wait for 4.
  OrderProblem p;
  p.buffer_bytes = {10, 10, 1, 4};
  p.live_out = {false, false, true, false};
  p.nodes = {node({}, {0}), node({}, {1}),      node({0, 1}, {}, 80), node({1}, {}),
             node({}, {2}), node({0}, {3}, 85), node({3}, {})};
  p.nodes[3].after = {2};
  p.nodes[5].after = {1};
  CHECK(peak_bytes(p, given(p)) == 100);
  const std::vector<int32_t> order = with_frees_early(p, given(p));
  CHECK(order == std::vector<int32_t>{0, 1, 2, 3, 5, 6, 4});
  CHECK(peak_bytes(p, order) == 100);
}

TEST_CASE("order: frees of random graphs come early without a higher peak") {
  std::mt19937 random(9);
  for (int round = 0; round < 300; ++round) {
    const OrderProblem p = random_problem(random, 2 + round % 60, 3 + round % 20);
    const std::vector<int32_t> order = order_for_low_peak(p), early = with_frees_early(p, order);
    REQUIRE(keeps_the_rules(p, early));
    CHECK(peak_bytes(p, early) <= peak_bytes(p, order));
  }
}

TEST_CASE("order: equal to exhaustive search on 1000 random graphs") {
  std::mt19937 random(3);
  for (int round = 0; round < 1000; ++round) {
    OrderProblem p = random_problem(random, 2 + round % 13, 3 + round % 6);
    std::vector<int32_t> order = order_for_low_peak(p);
    REQUIRE(keeps_the_rules(p, order));
    int64_t peak = peak_bytes(p, order);
    CHECK(peak == peak_by_definition(p, order));
    CHECK(peak == lowest_peak_by_exhaustion(p));
  }
}

TEST_CASE("order: large random graphs keep the rules and never get worse") {
  std::mt19937 random(5);
  for (int round = 0; round < 12; ++round) {
    OrderProblem p = random_problem(random, 21 + 30 * round, 4 + 3 * round);
    OrderOptions options;
    options.seconds = 0.1;
    std::vector<int32_t> order = order_for_low_peak(p, options);
    REQUIRE(keeps_the_rules(p, order));
    int64_t peak = peak_bytes(p, order);
    CHECK(peak == peak_by_definition(p, order));
    CHECK(peak <= peak_bytes(p, given(p)));
    CHECK(order == order_for_low_peak(p, options));
  }
}
