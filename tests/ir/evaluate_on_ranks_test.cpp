#include "ir/evaluate.h"
#include "tests/support/small_training.h"

#include <doctest/doctest.h>

namespace plimsoll {
namespace {

using namespace testing;

Tensor row(llvm::ArrayRef<double> values) {
  return Tensor::of_floats(values, DType::F32, {static_cast<int64_t>(values.size())});
}

// Runs a graph of one input on ranks along the data axis and gives its first output on each.
std::vector<Tensor> run(llvm::StringRef text, llvm::ArrayRef<Tensor> inputs, Mesh mesh) {
  const Graph graph = parsed(text);
  std::vector<Bindings> bindings;
  for (const Tensor& input : inputs) bindings.push_back({{graph.inputs[0], &input}});
  Result<std::vector<Evaluation>> results = evaluate_on_ranks(graph, mesh, bindings);
  REQUIRE_MESSAGE(bool(results), llvm::toString(results.takeError()));
  std::vector<Tensor> outputs;
  for (Evaluation& rank : *results) outputs.push_back(std::move(rank.outputs.front()));
  return outputs;
}

Mesh data_mesh(int64_t ranks) {
  Mesh mesh;
  mesh[MeshAxis::Data] = ranks;
  return mesh;
}

TEST_SUITE("unit") {
  TEST_CASE("ranks know their places in a mesh") {
    const Mesh mesh = llvm::cantFail(parse_mesh("data=2,tensor=3,stage=2"));
    CHECK(mesh.ranks() == 12);
    CHECK(to_string(mesh) == "data=2,tensor=3,stage=2");
    CHECK(mesh.coordinate(7, MeshAxis::Tensor) == 1);
    CHECK(mesh.coordinate(7, MeshAxis::Data) == 0);
    CHECK(mesh.coordinate(7, MeshAxis::Stage) == 1);
    for (const char* wrong : {"rows=2", "data=0", "data=x", "data=70000", "data=512,tensor=512", "data=2,data=2"}) {
      Result<Mesh> refused = parse_mesh(wrong);
      CHECK_FALSE(bool(refused));
      llvm::consumeError(refused.takeError());
    }
  }

  TEST_CASE("every rank gets the sum of all") {
    const std::vector<Tensor> sums = run(R"(graph @g(%x: f32[2]) {
      %y = reduce_all(%x) {axis="data", ranks=3} : f32[2]
      return %y
    })",
                                         {row({1, 2}), row({10, 20}), row({100, 200})}, data_mesh(3));
    for (const Tensor& sum : sums) CHECK(sum == row({111, 222}));
  }

  // Five numbers are two whole pieces of three less one zero.
  TEST_CASE("a sum in pieces, gathered, is the sum") {
    const std::vector<Tensor> pieces = run(R"(graph @g(%x: f32[5]) {
      %y = reduce_pieces(%x) {axis="data", ranks=2, shape=[3]} : f32[3]
      return %y
    })",
                                           {row({1, 2, 3, 4, 5}), row({10, 20, 30, 40, 50})}, data_mesh(2));
    CHECK(pieces[0] == row({11, 22, 33}));
    CHECK(pieces[1] == row({44, 55, 0}));
    for (const Tensor& whole : run(R"(graph @g(%x: f32[3]) {
      %y = gather_pieces(%x) {axis="data", ranks=2, shape=[5]} : f32[5]
      return %y
    })",
                                   pieces, data_mesh(2)))
      CHECK(whole == row({11, 22, 33, 44, 55}));
  }

  TEST_CASE("a rank takes its own piece and puts it back in its place") {
    const std::vector<Tensor> placed = run(R"(graph @g(%x: f32[5]) {
      %p = take_piece(%x) {axis="data", ranks=2, shape=[3]} : f32[3]
      %y = place_piece(%p) {axis="data", ranks=2, shape=[5]} : f32[5]
      return %y
    })",
                                           {row({1, 2, 3, 4, 5}), row({1, 2, 3, 4, 5})}, data_mesh(2));
    CHECK(placed[0] == row({1, 2, 3, 0, 0}));
    CHECK(placed[1] == row({0, 0, 0, 4, 5}));
  }

  // Ranks 0 and 1 differ along the tensor axis, 0 and 2 along the data axis.
  TEST_CASE("a group is the ranks that differ along its axis alone") {
    const std::vector<Tensor> sums =
        run(R"(graph @g(%x: f32[1]) {
      %y = reduce_all(%x) {axis="data", ranks=2} : f32[1]
      return %y
    })",
            {row({1}), row({10}), row({100}), row({1000})}, llvm::cantFail(parse_mesh("data=2,tensor=2")));
    CHECK(sums[0] == row({101}));
    CHECK(sums[1] == row({1010}));
    CHECK(sums[2] == row({101}));
    CHECK(sums[3] == row({1010}));
  }

  TEST_CASE("pieces that do not make the whole, and a group of another size, are errors") {
    Result<Graph> small = parse_graph(R"(graph @g(%x: f32[5]) {
      %y = reduce_pieces(%x) {axis="data", ranks=2, shape=[2]} : f32[2]
      return %y
    })");
    REQUIRE_FALSE(bool(small));
    CHECK(llvm::StringRef(take_diag(small.takeError()).text()).contains("2 pieces of 2 elements do not make 5"));
    const Graph graph = parsed(R"(graph @g(%x: f32[1]) {
      %y = reduce_all(%x) {axis="data", ranks=3} : f32[1]
      return %y
    })");
    const Tensor one = row({1});
    const Bindings bound{{graph.inputs[0], &one}};
    Result<std::vector<Evaluation>> other = evaluate_on_ranks(graph, data_mesh(2), {bound, bound});
    REQUIRE_FALSE(bool(other));
    CHECK(llvm::StringRef(take_diag(other.takeError()).text()).contains("is of 3 ranks along data, the mesh has 2"));
  }
}

}  // namespace
}  // namespace plimsoll
