#include "passes/offload/offload_rewrite.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "passes/analysis/buffer_assignment.h"
#include "runtime/cpu/cpu_catalog.h"

#include <doctest/doctest.h>

namespace plimsoll {
namespace {

TEST_SUITE("unit") {
  // Only a view is between %v.reload and %w.reload. If both are issued together, the second stays before its own view.
  TEST_CASE("a copy that is issued together with the one before it stays where it is") {
    Graph graph = cantFail(parse_graph(R"(
graph @views(%x: f32[4]) state(%v: f32[2, 2] parameter trained, %w: f32[2, 2] parameter trained) {
  %a = reshape(%v) {shape=[4]} : f32[4]
  %b = reshape(%w) {shape=[4]} : f32[4]
  %c = add(%a, %b) : f32[4]
  return %c
})"));
    std::vector<NodeId> writers;
    llvm::StringSet<> states;
    states.insert("v");
    states.insert("w");
    move_states_to_host(graph, writers, states);
    issue_copies(graph, {CopyInterval{0, 0, 2}, CopyInterval{1, 0, 2}});
    CHECK_FALSE(bool(verify(graph)));
  }

  TEST_CASE("a gather that moves up leaves a view to those who read it earlier") {
    Graph graph = cantFail(parse_graph(R"(
graph @views(%x: f32[2,2]) {
  %y = relu(%x) : f32[2,2]
  %flat = reshape(%y) {shape=[4]} : f32[4]
  %first = gather_pieces(%flat) {axis="tensor", ranks=2, shape=[8]} : f32[8]
  %z = relu(%first) : f32[8]
  %second = gather_pieces(%flat) {axis="tensor", ranks=2, shape=[8]} : f32[8]
  %sum = add(%z, %second) : f32[8]
  return %sum
})"));
    const std::vector<CopyInFlight> copies = issue_copies(graph, {CopyInterval{1, 1, 2}, CopyInterval{3, 2, 4}});
    CHECK_FALSE(bool(verify(graph)));
    REQUIRE(copies.size() == 1);
    CHECK(copies[0].done == 4);
  }

  // A sum may take over the bytes of what it reads, but not while another collective still reads them.
  TEST_CASE("what two collectives in flight read is held until both are through") {
    Graph graph = cantFail(parse_graph(R"(
graph @sums(%x: f32[4]) {
  %y = relu(%x) : f32[4]
  %all = gather_pieces(%y) {axis="tensor", ranks=2, shape=[8]} : f32[8]
  %sum = reduce_all(%y) {axis="tensor", ranks=2} : f32[4]
  %a = relu(%x) : f32[4]
  %b = add(%a, %sum) : f32[4]
  return a=%all, b=%b
})"));
    const auto node_of = [&](llvm::StringRef name) { return graph.value(graph.find_value(name)).producer; };
    const std::vector<CopyInFlight> copies{{node_of("all"), 4}, {node_of("sum"), 4}};
    const BufferAssignment assignment = assign_buffers(graph, {}, copies, CpuCatalog());
    const auto buffer_of = [&](llvm::StringRef name) { return assignment.buffer_of[index_of(graph.find_value(name))]; };
    CHECK(buffer_of("sum") != buffer_of("y"));
    CHECK(assignment.buffers[static_cast<size_t>(buffer_of("y"))].last == 3);
  }
}

}  // namespace
}  // namespace plimsoll
