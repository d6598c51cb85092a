#include "ir/builder.h"
#include "ir/evaluate.h"
#include "runtime/comm/group_ranks.h"
#include "runtime/comm/thread_ranks.h"
#include "runtime/cpu/cpu_catalog.h"
#include "runtime/executor.h"
#include "runtime/single_op_plan.h"
#include "tests/support/collective_calls.h"
#include "tests/support/small_training.h"

#include <doctest/doctest.h>

#include <cstring>
#include <thread>

// Every collective by itself on several ranks: the gradient rule against the definition, and the processor's kernel
// against the reference.

namespace plimsoll {
namespace {

using namespace testing;

std::string described(const CollectiveCall& call, const Mesh& mesh, MeshAxis axis) {
  return call.op + " of " + to_string(call.x) + " along " + axis_name(axis).str() + " of " + to_string(mesh);
}

// The op on `x`, and its gradient for `dy`.
struct WithGradient {
  Graph graph;
  ValueId x, dy;
};
WithGradient graph_of(const CollectiveCall& call, MeshAxis axis, int64_t ranks) {
  WithGradient made;
  made.x = made.graph.add_input("x", call.x);
  Builder b(made.graph);
  const ValueId y = b.emit(call.op, {made.x}, in_group(call, axis, ranks));
  made.dy = made.graph.add_input("dy", made.graph.type(y));
  const ValueId dys[] = {made.dy};
  const bool wanted[] = {true};
  GradContext g(b, made.graph.value(y).producer, dys, wanted);
  if (Status s = get_op(call.op).gradient.function()(g)) FAIL(llvm::toString(std::move(s)));
  made.graph.outputs = {{"y", y}, {"dx", g.gradients()[0]}};
  return made;
}

double product(llvm::ArrayRef<Tensor> a, llvm::ArrayRef<Tensor> b) {
  double sum = 0;
  for (size_t rank = 0; rank < a.size(); ++rank)
    for (int64_t i = 0; i < a[rank].type().elements(); ++i) sum += a[rank].get(i) * b[rank].get(i);
  return sum;
}

// What the processor's kernel makes on each rank.
std::vector<Tensor> run_on_threads(const Graph& graph, const Mesh& mesh, llvm::ArrayRef<Tensor> xs) {
  const Node& node = graph.node(graph.first_node());
  const llvm::SmallVector<const Type*, 4> types = operand_types(graph, node);
  const OpCall call(*node.op, node.attrs, types);
  const Types results = result_types(graph, node);
  const CpuCatalog catalog;
  Plan plan =
      plan_of({*node.op, call, results, catalog.candidates(*node.op, call, results).front().name}, cpu_device());
  plan.mesh = mesh;
  const Instruction& only = plan.functions.front().instructions.front();
  std::vector<Tensor> made(xs.size(), Tensor(results.front()));
  std::vector<std::unique_ptr<Communicator>> ranks = make_thread_ranks(mesh.ranks());
  std::vector<std::thread> threads;
  for (auto& rank : ranks)
    threads.emplace_back([&, own = rank.get()] {
      const auto at = static_cast<size_t>(own->rank());
      ExecutorOptions options;
      options.threads = 1;
      options.ranks = own;
      std::unique_ptr<Executor> executor = llvm::cantFail(Executor::create(plan, options));
      llvm::cantFail(executor->write(only.operands[0], [&](const TensorView& bytes) {
        std::memcpy(bytes.data, xs[at].data(), static_cast<size_t>(bytes.type.bytes()));
        return Status::success();
      }));
      llvm::cantFail(executor->run(0).takeError());
      llvm::cantFail(executor->read_into(only.results[0], made[at].view()));
    });
  for (std::thread& thread : threads) thread.join();
  return made;
}

// A collective is linear: its gradient is right where sum(y dy) = sum(x dx) over all ranks.
void check_collective(const CollectiveCall& call, const Mesh& mesh, MeshAxis axis) {
  INFO(described(call, mesh, axis));
  const WithGradient made = graph_of(call, axis, mesh[axis]);
  const auto ranks = static_cast<size_t>(mesh.ranks());
  const std::vector<Tensor> xs = whole_numbers(call.x, ranks, 7),
                            dys = whole_numbers(made.graph.type(made.dy), ranks, 8);
  std::vector<Bindings> bindings;
  for (size_t rank = 0; rank < ranks; ++rank) bindings.push_back({{made.x, &xs[rank]}, {made.dy, &dys[rank]}});
  Result<std::vector<Evaluation>> results = evaluate_on_ranks(made.graph, mesh, bindings);
  REQUIRE_MESSAGE(bool(results), llvm::toString(results.takeError()));
  std::vector<Tensor> ys, dxs;
  for (Evaluation& rank : *results) {
    ys.push_back(std::move(rank.outputs[0]));
    dxs.push_back(std::move(rank.outputs[1]));
  }
  CHECK(product(ys, dys) == product(xs, dxs));
  const std::vector<Tensor> run = run_on_threads(made.graph, mesh, xs);
  for (size_t rank = 0; rank < ranks; ++rank) CHECK(run[rank] == ys[rank]);
}

TEST_SUITE("unit") {
  TEST_CASE("collectives on 2, 3 and 4 ranks: gradients by their definition, kernels by the reference") {
    for (int64_t count : {2, 3, 4}) {
      Mesh mesh;
      mesh[MeshAxis::Data] = count;
      for (const CollectiveCall& call : collective_calls(count)) check_collective(call, mesh, MeshAxis::Data);
    }
    // A group is a part of the ranks, and roots are counted within it.
    const Mesh mesh = llvm::cantFail(parse_mesh("data=3,tensor=2"));
    for (MeshAxis axis : {MeshAxis::Data, MeshAxis::Tensor})
      for (const CollectiveCall& call : collective_calls(mesh[axis])) check_collective(call, mesh, axis);
  }

  TEST_CASE("what a rank gives and gets: a broadcast, and parts that change places") {
    auto first_outputs = [](llvm::StringRef text, llvm::ArrayRef<Tensor> xs) {
      const Graph graph = parsed(text);
      Mesh mesh;
      mesh[MeshAxis::Data] = static_cast<int64_t>(xs.size());
      std::vector<Bindings> bindings;
      for (const Tensor& x : xs) bindings.push_back({{graph.inputs[0], &x}});
      std::vector<Tensor> outputs;
      for (Evaluation& rank : llvm::cantFail(evaluate_on_ranks(graph, mesh, bindings)))
        outputs.push_back(std::move(rank.outputs.front()));
      return outputs;
    };
    auto numbers = [](llvm::ArrayRef<double> list, Shape shape) { return Tensor::of_floats(list, DType::F32, shape); };
    for (const Tensor& y : first_outputs(R"(graph @g(%x: f32[2]) {
      %y = broadcast(%x) {axis="data", ranks=3, root=1} : f32[2]
      return %y
    })",
                                         {numbers({1, 2}, {2}), numbers({3, 4}, {2}), numbers({5, 6}, {2})}))
      CHECK(y == numbers({3, 4}, {2}));
    // Each rank has a row of four numbers, and then two columns of both rows.
    const std::vector<Tensor> columns = first_outputs(R"(graph @g(%x: f32[1,4]) {
      %y = all_to_all(%x) {axis="data", ranks=2, split=1, join=0} : f32[2,2]
      return %y
    })",
                                                      {numbers({1, 2, 3, 4}, {1, 4}), numbers({5, 6, 7, 8}, {1, 4})});
    CHECK(columns[0] == numbers({1, 2, 5, 6}, {2, 2}));
    CHECK(columns[1] == numbers({3, 4, 7, 8}, {2, 2}));
  }

  TEST_CASE("a root that is no rank of the group, a missing value and parts that do not divide are refused") {
    auto refused = [](llvm::StringRef line) {
      Result<Graph> graph = parse_graph("graph @g(%x: f32[5]) {\n  " + line.str() + "\n  return %y\n}");
      REQUIRE_FALSE(bool(graph));
      return take_diag(graph.takeError()).text();
    };
    CHECK(refused("%y = broadcast(%x) {axis=\"data\", ranks=2, root=2} : f32[5]").find("root is 2 of 2 ranks") !=
          std::string::npos);
    CHECK(refused("%y = reduce_root(%x) {axis=\"data\", ranks=2, root=-1} : f32[5]").find("root is -1 of 2 ranks") !=
          std::string::npos);
    CHECK(refused("%y = broadcast() {axis=\"data\", ranks=2, root=0, dtype=f32, shape=[5]} : f32[5]")
              .find("x is missing") != std::string::npos);
    CHECK(refused("%y = all_to_all(%x) {axis=\"data\", ranks=2, split=0, join=0} : f32[5]")
              .find("dimension 0 of f32[5] does not divide by 2 ranks") != std::string::npos);
    CHECK(refused("%y = all_to_all(%x) {axis=\"data\", ranks=5, split=0, join=1} : f32[1]").find("join") !=
          std::string::npos);
  }
}

}  // namespace
}  // namespace plimsoll
