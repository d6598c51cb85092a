#include "passes/remat/remat_problem.h"
#include "ir/text.h"
#include "passes/analysis/buffer_assignment.h"
#include "passes/analysis/cost_model.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/budget_jobs.h"

#include <doctest/doctest.h>
#include <limits>

namespace plimsoll {
namespace {

using namespace testing;

TEST_SUITE("unit") {
  // %y draws with the counter, so it can be recomputed until the counter advances, which is before %b once that has
  // moved.
  TEST_CASE("the random counter is advanced last, so that a draw can be recomputed") {
    Graph graph = cantFail(parse_graph(R"(
graph @draws(%x: f32[64]) state(%rng: i64[2] counter fill=0) {
  %y = dropout(%x, %rng) {id=1, ratio=0.5} : f32[64]
  %one = constant() {value=i64[2]<0,1>} : i64[2]
  %next = add(%rng, %one) : i64[2] phase=update
  %a = exp(%y) : f32[64]
  %b = mul(%a, %y) : f32[64]
  return %b
  update %rng = %next
})"));
    std::vector<NodeId> writers = make_updates_writable(graph);
    CpuCatalog catalog;
    CHECK(graph_remat_problem(graph, writers, small_device(), catalog).problem.ops[0].remat_until == 1);
    delay_free_updates(graph, writers);
    GraphRematProblem sequence = graph_remat_problem(graph, writers, small_device(), catalog);
    CHECK(sequence.problem.ops[0].remat_until == 3);
    CHECK_FALSE(sequence.problem.ops[3].repeatable);
    RematPlan plan;
    plan.remats = {{2, 0}};
    std::vector<NodeId> again = rematerialise(graph, plan, sequence.values);
    REQUIRE(again.size() == 1);
    CHECK(graph.value(graph.node(again[0]).results[0]).name == "y.recompute");
    CHECK(graph.node(again[0]).reason == "recomputed before %b instead of keeping 256 B");
    CHECK(graph.value(graph.find_value("y")).users.size() == 1);
  }

  // %b is reloaded first. The search identifies the copies of its intervals by position.
  TEST_CASE("results of one instruction are copied to the host in the order the search had them") {
    Graph graph = cantFail(parse_graph(R"(
graph @two(%x: f32[65536]) {
  %a, %b = split(%x) {axis=0, sizes=[16384, 49152]} : f32[16384], f32[49152]
  %c = exp(%b) : f32[49152] phase=backward
  %d = exp(%a) : f32[16384] phase=backward
  return %c, %d
})"));
    CpuCatalog catalog;
    GraphRematProblem sequence =
        graph_remat_problem(graph, {}, device_with_host(), catalog, std::numeric_limits<int64_t>::max());
    auto value = [&](llvm::StringRef name) {
      return static_cast<int32_t>(llvm::find(sequence.values, graph.find_value(name)) - sequence.values.begin());
    };
    RematPlan plan = measure_remats(sequence.problem, {}, {{1, value("b")}, {2, value("a")}});
    RematProblem ops = apply_to_problem(sequence.problem, plan);
    rematerialise(graph, plan, sequence.values);
    std::vector<double> thought, made;
    for (const RematOp& op : ops.ops)
      if (op.engine == Engine::ToHost) thought.push_back(op.cost_us);
    for (NodeId id : graph.order())
      if (graph.node(id).op->engine == Engine::ToHost)
        made.push_back(cost_of(graph, graph.node(id), device_with_host()).predicted_us);
    REQUIRE(thought.size() == 2);
    CHECK(thought[0] < thought[1]);
    CHECK(made == thought);
  }

  // The values have 256 KiB each, and a matmul takes longer than exp.
  TEST_CASE("the host is offered the values that take longest to make, as many as it can hold") {
    Graph graph = cantFail(parse_graph(R"(
graph @two(%x: f32[256, 256], %y: f32[256, 256]) {
  %a = exp(%x) : f32[256, 256]
  %b = matmul(%a, %y) : f32[256, 256]
  %c = mul(%a, %b) : f32[256, 256] phase=backward
  return %c
})"));
    CpuCatalog catalog;
    auto offered = [&](int64_t host_bytes) {
      std::vector<std::string> names;
      GraphRematProblem sequence = graph_remat_problem(graph, {}, device_with_host(), catalog, host_bytes);
      for (const OffloadOption& option : sequence.dearest.empty() ? sequence.largest : sequence.dearest)
        names.push_back(graph.value(sequence.values[static_cast<size_t>(option.value)]).name);
      return names;
    };
    CHECK(offered(512 << 10) == std::vector<std::string>{"a", "b"});
    CHECK(offered(511 << 10) == std::vector<std::string>{"b"});
  }
}

}  // namespace
}  // namespace plimsoll
