#include "tests/support/kernel_calls.h"

#include "ir/text.h"
#include "runtime/cuda/cuda_catalog.h"

#include <doctest/doctest.h>

#include <set>

// The timing table misses no kernel: each stands in a call that is timed.

using namespace plimsoll;
using namespace plimsoll::testing;

namespace {

// "op/kernel" of what accepts a call of the file, by dtype f32 or bf16.
std::set<std::string> kernels_of_calls() {
  Result<DeviceCatalog> devices = DeviceCatalog::builtin();
  REQUIRE(bool(devices));
  Result<DeviceDescription> device = devices->find("h200");
  REQUIRE(bool(device));
  const CudaCatalog catalog(*device, /*any_order=*/true);
  std::set<std::string> kernels;
  for (DType dtype : {DType::F32, DType::BF16}) {
    Result<Program> program = kernel_calls("on_card/speeds/calls.txt", dtype);
    if (!program) FAIL(llvm::toString(program.takeError()));
    for (const Graph& graph : program->functions)
      for (NodeId id : graph.order()) {
        const Node& node = graph.node(id);
        const auto types = operand_types(graph, node);
        const auto candidates =
            catalog.candidates(*node.op, OpCall(*node.op, node.attrs, types), result_types(graph, node));
        INFO(graph.value(node.results[0]).name, " in ", dtype_name(dtype).str());
        CHECK(candidates.front().name != "reference");
        for (const KernelCandidate& candidate : candidates) kernels.insert(node.op->name.str() + "/" + candidate.name);
      }
  }
  return kernels;
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

  TEST_CASE("integers of a call are drawn below the number that their name ends in") {
    CHECK(integers_below("ids.50257") == 50257);
    CHECK(integers_below("rng") == 1);
    CHECK(integers_below("x.last") == 1);
  }
}
