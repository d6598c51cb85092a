#include "ir/verify.h"

#include "ir/op_def.h"
#include "ir/text.h"

#include <doctest/doctest.h>

namespace plimsoll {
namespace {

Graph graph_of(llvm::StringRef text) {
  Result<Graph> graph = parse_graph(text);
  REQUIRE(static_cast<bool>(graph));
  return std::move(*graph);
}

template <typename T>
std::string failure_of(const T& what) {
  Status status = verify(what);
  return status ? take_diag(std::move(status)).text() : "";
}

Graph chain() {
  return graph_of(R"(graph @g(%x: f32[2]) state(%w: f32[2] parameter trained) {
    %a = neg(%x) : f32[2]
    %b = add(%a, %w) : f32[2]
    return %b
    update %w = %b
  })");
}

}  // namespace

TEST_SUITE_BEGIN("unit");

TEST_CASE("a parsed graph verifies") { CHECK(failure_of(chain()) == ""); }

TEST_CASE("an operand must stand above") {
  Graph graph = chain();
  graph.move_before(graph.last_node(), graph.first_node());
  CHECK(failure_of(graph) == "verify: b (add): operand 0 is not written before it");
}

TEST_CASE("types are those of inference") {
  Graph graph = chain();
  graph.set_type(graph.find_value("a"), Type(DType::F32, {3}));
  CHECK(failure_of(graph) == "verify: a (neg): a is f32[3], its op gives f32[2]");
}

TEST_CASE("use lists hold each reader") {
  Graph graph = chain();
  graph.node(graph.last_node()).operands[0] = graph.inputs[0];  // without telling the graph
  CHECK(failure_of(graph) == "verify: x: its use list has 1 entries, its readers are 2");
}

TEST_CASE("operands are neither missing nor erased") {
  Graph graph = chain();
  graph.set_operand(graph.last_node(), 1, ValueId::None);
  CHECK(failure_of(graph) == "verify: b (add): operand 1 is missing");
}

TEST_CASE("a transpose has the shape of one, and neither of the two changes") {
  const auto failure = [](const char* states, const char* updates) {
    return failure_of(graph_of(std::string("graph @g(%x: f32[2,3]) state(") + states +
                               ") {\n  %a = neg(%x) : f32[2,3]\n" + "  return %a\n" + updates + "}\n"));
  };
  const char* right = "%w: f32[2,3] parameter, %t: f32[3,2] parameter transpose_of=w";
  CHECK(failure(right, "") == "");
  CHECK(failure("%w: f32[2,3] parameter, %t: f32[2,3] parameter transpose_of=w", "") ==
        "verify: t: is f32[2,3] but the transpose of f32[2,3]");
  CHECK(failure("%w: f32[6] parameter, %t: f32[6] parameter transpose_of=w", "") ==
        "verify: t: is f32[6] but the transpose of f32[6]");
  CHECK(failure(right, "  update %w = %a\n") == "verify: t: is the transpose of w, and a step changes w");
}

TEST_CASE("updates and outputs are checked") {
  Graph twice = chain();
  twice.updates.push_back(twice.updates[0]);
  CHECK(failure_of(twice) == "verify: w: is updated twice");

  Graph of_input = chain();
  of_input.updates[0].state = of_input.inputs[0];
  CHECK(failure_of(of_input) == "verify: g: an update has no state");

  Graph no_value = chain();
  no_value.outputs[0].value = ValueId::None;
  CHECK(failure_of(no_value) == "verify: b: the output has no value");

  Graph same_name = chain();
  same_name.outputs.push_back({"b", same_name.find_value("a")});
  CHECK(failure_of(same_name) == "verify: b: two outputs have this name");
}

TEST_CASE("only learnt states are trained") {
  Graph graph = chain();
  graph.states[0].role = StateRole::Counter;
  CHECK(failure_of(graph) == "verify: w: a counter of f32[2] cannot be trained");
}

TEST_CASE("what is in host memory is copied before it is used") {
  Graph graph = graph_of(R"(graph @g(%x: f32[2]) state(%m: f32[2] optimizer host fill=0) {
    %here = to_device(%m) : f32[2]
    %next = add(%here, %x) : f32[2]
    %away = to_host(%next) : f32[2]
    return %next
    update %m = %away
  })");
  CHECK(failure_of(graph) == "");

  Graph used = graph;
  used.set_operand(used.value(used.find_value("next")).producer, 0, used.find_value("m"));
  CHECK(failure_of(used) == "verify: next (add): operand 0 is in host memory");

  Graph fetched_twice = graph;
  fetched_twice.set_operand(fetched_twice.value(fetched_twice.find_value("here")).producer, 0, fetched_twice.inputs[0]);
  CHECK(failure_of(fetched_twice) == "verify: here (to_device): operand 0 is in device memory");

  Graph left_here = graph;
  left_here.updates[0].value = left_here.find_value("next");
  CHECK(failure_of(left_here) == "verify: m: is in host memory, its update is not");

  Graph returned = graph;
  returned.outputs[0].value = returned.find_value("away");
  CHECK(failure_of(returned) == "verify: next: the output is in host memory");
}

TEST_CASE("functions agree on the states they share") {
  Program program;
  program.functions = {chain(), chain()};
  CHECK(failure_of(program) == "verify: two functions are named @g");
  program.functions[1].name = std::string("h");
  CHECK(failure_of(program) == "");
  program.functions[1].states[0].role = StateRole::Buffer;
  CHECK(failure_of(program) == "verify: state w differs between @g (f32[2] parameter) and @h (f32[2] buffer)");
  program.functions[1].states[0].role = StateRole::Parameter;
  program.functions[1].states[0].space = MemorySpace::Host;
  program.functions[1].updates.clear();
  program.functions[1].set_operand(program.functions[1].last_node(), 1, program.functions[1].inputs[0]);
  CHECK(failure_of(program) == "verify: state w differs between @g (f32[2] parameter) and @h (f32[2] parameter host)");
}

TEST_SUITE_END();

}  // namespace plimsoll
