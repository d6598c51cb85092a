#include "ir/evaluate.h"

#include "ir/text.h"

#include <doctest/doctest.h>

namespace plimsoll {
namespace {

Graph counting() {
  Result<Graph> graph = parse_graph(R"(graph @g(%x: f32[2], %unread: f32[9]) state(%n: f32[2] counter fill=0) {
    %a = neg(%x) : f32[2]
    %m = add(%n, %a) : f32[2]
    return %a, %m, again=%m, input=%x
    update %n = %m
  })");
  REQUIRE(static_cast<bool>(graph));
  return std::move(*graph);
}

}  // namespace

TEST_SUITE_BEGIN("unit");

TEST_CASE("outputs and updates come in the graph's order") {
  Graph graph = counting();
  Tensor x = Tensor::of_floats({1, 2}, DType::F32, {2}), n = Tensor::of_floats({10, 20}, DType::F32, {2});
  Result<Evaluation> run = evaluate(graph, {{graph.inputs[0], &x}, {graph.states[0].value, &n}});
  REQUIRE(static_cast<bool>(run));
  Tensor sum = Tensor::of_floats({9, 18}, DType::F32, {2});
  REQUIRE(run->outputs.size() == 4);
  CHECK(run->outputs[0] == Tensor::of_floats({-1, -2}, DType::F32, {2}));
  CHECK(run->outputs[1] == sum);
  CHECK(run->outputs[2] == sum);
  CHECK(run->outputs[3] == x);
  REQUIRE(run->updates.size() == 1);
  CHECK(run->updates[0] == sum);
  CHECK(run->values.empty());
}

TEST_CASE("every value is kept on request") {
  Graph graph = counting();
  Tensor x(Type(DType::F32, {2})), n(Type(DType::F32, {2}));
  Result<Evaluation> run = evaluate(graph, {{graph.inputs[0], &x}, {graph.states[0].value, &n}}, Keep::EveryValue);
  REQUIRE(static_cast<bool>(run));
  CHECK(run->values[index_of(graph.find_value("a"))].type() == Type(DType::F32, {2}));
}

TEST_CASE("what is read must be bound, with its type") {
  Graph graph = counting();
  Tensor x(Type(DType::F32, {2})), wrong(Type(DType::F32, {3}));
  Result<Evaluation> unbound = evaluate(graph, {{graph.inputs[0], &x}});
  REQUIRE(!unbound);
  CHECK(take_diag(unbound.takeError()).text() == "state n has no value");
  Result<Evaluation> mistyped = evaluate(graph, {{graph.inputs[0], &wrong}});
  REQUIRE(!mistyped);
  CHECK(take_diag(mistyped.takeError()).text() == "input x is f32[2], its value is f32[3]");
}

TEST_SUITE_END();

}  // namespace plimsoll
