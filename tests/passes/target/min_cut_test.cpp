#include "passes/target/min_cut.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

using namespace plimsoll;

namespace {

struct Edge {
  size_t from, to;
  int64_t capacity;
};

int64_t cost_of(const std::vector<Edge>& edges, const std::vector<bool>& side) {
  int64_t cost = 0;
  for (const Edge& edge : edges)
    if (side[edge.from] && !side[edge.to]) cost += edge.capacity;
  return cost;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("min cut: no cut of random graphs is cheaper, and none as cheap has fewer vertices") {
    constexpr size_t vertices = 8, source = 0, sink = 1;
    std::mt19937 random(7);
    for (int graph = 0; graph < 300; ++graph) {
      std::vector<Edge> edges;
      for (int i = 0; i < 20; ++i)
        edges.push_back({random() % vertices, random() % vertices, static_cast<int64_t>(random() % 6)});
      MinCut problem(vertices);
      for (const Edge& edge : edges) problem.add_edge(edge.from, edge.to, edge.capacity);
      const std::vector<bool> found = problem.source_side(source, sink);
      REQUIRE((found[source] && !found[sink]));
      for (unsigned bits = 0; bits < 1u << vertices; ++bits) {
        std::vector<bool> side(vertices);
        for (size_t v = 0; v < vertices; ++v) side[v] = (bits >> v & 1) != 0;
        if (!side[source] || side[sink]) continue;
        const int64_t cost = cost_of(edges, side), least = cost_of(edges, found);
        CHECK(cost >= least);
        if (cost == least)
          CHECK(std::count(side.begin(), side.end(), true) >= std::count(found.begin(), found.end(), true));
      }
    }
  }

  TEST_CASE("min cut: an unbounded edge is never cut") {
    MinCut problem(4);
    problem.add_edge(0, 2, 5);
    problem.add_edge(2, 3, MinCut::unbounded);
    problem.add_edge(3, 1, 3);
    const std::vector<bool> side = problem.source_side(0, 1);
    CHECK(side == std::vector<bool>{true, false, true, true});
  }
}
