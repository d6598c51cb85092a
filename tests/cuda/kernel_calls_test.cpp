#include "tests/support/kernel_calls.h"

#include "ir/text.h"
#include "runtime/cuda/cuda_catalog.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

// The timing table misses no kernel: each stands in a call that is timed.

using namespace plimsoll;
using namespace plimsoll::testing;

namespace {

using VisitFn = llvm::function_ref<void(const Graph& graph, const Node& node, const OpCall& call)>;

DeviceDescription h200() { return llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200")); }

// Each call of the file, by dtype f32 or bf16.
void visit_calls(VisitFn visit) {
  for (DType dtype : {DType::F32, DType::BF16}) {
    INFO(dtype_name(dtype).str());
    Result<Program> program = kernel_calls("on_card/speeds/calls.txt", dtype);
    if (!program) FAIL(llvm::toString(program.takeError()));
    for (const Graph& graph : program->functions)
      for (NodeId id : graph.order()) {
        const Node& node = graph.node(id);
        const auto types = operand_types(graph, node);
        visit(graph, node, OpCall(*node.op, node.attrs, types));
      }
  }
}

// "op/kernel" of what accepts a call of the file.
std::set<std::string> kernels_of_calls() {
  const CudaCatalog catalog(h200(), /*any_order=*/true);
  std::set<std::string> kernels;
  visit_calls([&](const Graph& graph, const Node& node, const OpCall& call) {
    const auto candidates = catalog.candidates(call.op, call, result_types(graph, node));
    INFO(graph.value(node.results[0]).name);
    CHECK(candidates.front().name != "reference");
    for (const KernelCandidate& candidate : candidates) kernels.insert(call.op.name.str() + "/" + candidate.name);
  });
  return kernels;
}

bool are_equal(const KernelCandidate& a, const KernelCandidate& b) {
  return a.name == b.name && a.workspace_bytes == b.workspace_bytes && a.predicted_us == b.predicted_us &&
         a.shares_launches == b.shares_launches;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("every CUDA kernel has a call to be timed on, but for copies between memories") {
    const std::set<std::string> timed = kernels_of_calls();
    for (const CudaCandidate* candidate : cuda_candidates())
      for (int algorithm = 0; algorithm < candidate->algorithms; ++algorithm) {
        if (candidate->op.engine != Engine::Compute) continue;
        const std::string kernel = candidate->op.name.str() + "/" + candidate->kernel_name(algorithm);
        INFO(kernel);
        CHECK(timed.count(kernel) == 1);
      }
  }

  TEST_CASE("a catalog says the same of a call whatever it was asked before") {
    const CudaCatalog catalog(h200(), /*any_order=*/true);
    for (int times = 0; times < 2; ++times)
      visit_calls([&](const Graph& graph, const Node& node, const OpCall& call) {
        const Types results = result_types(graph, node);
        INFO(graph.value(node.results[0]).name);
        const auto of_one = CudaCatalog(h200(), /*any_order=*/true).candidates(call.op, call, results);
        const auto again = catalog.candidates(call.op, call, results);
        CHECK(std::equal(of_one.begin(), of_one.end(), again.begin(), again.end(), are_equal));
      });
  }

  TEST_CASE("integers of a call are drawn below the number that their name ends in") {
    CHECK(integers_below("ids.50257") == 50257);
    CHECK(integers_below("rng") == 1);
    CHECK(integers_below("x.last") == 1);
  }
}
