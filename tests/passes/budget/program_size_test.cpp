#include "passes/budget/program_size.h"
#include "ir/op_def.h"
#include "passes/compile.h"
#include "passes/train/optimizer_settings.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/rank_trainer.h"
#include "tests/support/small_training.h"

#include <doctest/doctest.h>

namespace plimsoll {
namespace {

using namespace testing;

Program program_in(int64_t chunks) {
  TrainingRequest request;
  request.adapters.rank = 2;
  request.adapters.alpha = 6;
  const ForwardModel forward = forward_of(parsed(packed_blocks), request);
  SplitChoice split;
  if (chunks > 1) split = {forward.graph.find_value("x"), chunks};
  Result<Program> program = make_program(forward, split, request);
  REQUIRE_MESSAGE(bool(program), llvm::toString(program.takeError()));
  return std::move(*program);
}

// Rows of 64 elements through layers whose parameters are larger than what they save.
std::string layers(int count) {
  std::string states, text;
  for (int i = 0; i < count; ++i) {
    const std::string n = std::to_string(i), x = i == 0 ? "%x" : "%g" + std::to_string(i - 1);
    states += (i ? ", %w" : "%w") + n + ": f32[64,64] parameter trained";
    text += "  %y" + n + " = linear(" + x + ", %w" + n + ") : f32[8,64]\n  %g" + n + " = gelu(%y" + n +
            ") {approximate=\"none\"} : f32[8,64]\n";
  }
  return "graph @layers(%x: f32[8,64]) state(" + states + ") {\n" + text + "  %loss = reduce_mean(%g" +
         std::to_string(count - 1) + ") {axes=[0,1], keep_dims=0} : f32[]\n  return loss=%loss\n}\n";
}

int64_t collectives_of(const Plan& plan) {
  int64_t count = 0;
  for (const PlanFunction& function : plan.functions)
    for (const Instruction& i : function.instructions) count += find_op(i.op)->engine == Engine::Ranks;
  return count;
}

int64_t reserved_for_ranks(const Plan& plan) {
  for (const Reserve& reserve : plan.device.reserves)
    if (reserve.name == "NCCL") return reserve.bytes;
  return 0;
}

TEST_SUITE("unit") {
  TEST_CASE("program size: convolutions that make several channels of one are known") {
    const auto spreads = [](const std::string& call) {
      const Graph graph =
          parsed("graph @g(%x: f32[2,4,4,1], %y: f32[2,4,4,6], %w: f32[6,3,3,1], %v: f32[8,3,3,6]) {\n" + call +
                 " return %r }");
      return spreads_single_channels(graph, graph.node(graph.first_node()));
    };
    CHECK(spreads("%r = conv(%x, %w) {channels_last=1} : f32[2,2,2,6]"));
    CHECK(spreads("%r = conv_dw(%x, %y) {channels_last=1, pads=[1,1,1,1], shape=[6,3,3,1]} : f32[6,3,3,1]"));
    CHECK_FALSE(spreads("%r = conv(%y, %w) {channels_last=1, groups=6} : f32[2,2,2,6]"));
    CHECK_FALSE(spreads("%r = conv(%y, %v) {channels_last=1} : f32[2,2,2,8]"));
    CHECK_FALSE(spreads("%r = relu(%y) : f32[2,4,4,6]"));
  }

  TEST_CASE("program size: collectives that run again are reserved for, within the budget") {
    DeviceDescription device = cpu_device();
    device.reserves.clear();
    device.collective_reserve_bytes = 1000;
    device.collective_graph_bytes = 300;
    TrainingRequest request;
    request.optimizer = default_optimizer(OptimizerKind::Sgd);
    request.mesh = llvm::cantFail(parse_mesh("data=2"));
    request.zero = 3;
    const CpuCatalog catalog;
    const Plan plain = llvm::cantFail(compile_training(parsed(layers(8)), request, device, catalog)).plan;
    CHECK(reserved_for_ranks(plain) == 1000 + 300 * collectives_of(plain));
    bool repeats = false;
    for (double share : {0.9, 0.8, 0.7}) {
      request.budget_bytes = static_cast<int64_t>(share * static_cast<double>(plain.promised_bytes()));
      const Plan plan = llvm::cantFail(compile_training(parsed(layers(8)), request, device, catalog)).plan;
      CHECK(reserved_for_ranks(plan) == 1000 + 300 * collectives_of(plan));
      repeats |= collectives_of(plan) > collectives_of(plain) && plan.promised_bytes() <= request.budget_bytes;
    }
    CHECK(repeats);
  }

  TEST_CASE("program size: what comes with kernels is reserved for programs that may call them") {
    DeviceDescription device = cpu_device();
    device.reserves = {{"products", 3000, "onednn"}, {"others", 500, "no_such_kernel"}, {"program", 20}};
    const CpuCatalog catalog;
    const Plan plan = llvm::cantFail(compile_training(parsed(layers(2)), {}, device, catalog)).plan;
    const std::vector<Reserve> held{{"products", 3000, "onednn"}, {"program", 20}};
    CHECK(plan.device.reserves == held);
  }

  // Eight matrices of adapters have an update each, and the four of B a product with the scale. A chunk more has
  // neither: about as many nodes as are counted, but for slices of the inputs and sums of gradients.
  TEST_CASE("program size: updates and what parameters alone decide are not made again for each chunk") {
    const Program whole = program_in(1);
    const int64_t rows = nodes_of_rows(whole), all = nodes_of(whole);
    CHECK(all - rows >= 12);
    const int64_t two = nodes_of(program_in(2)), four = nodes_of(program_in(4));
    const auto of_chunk = static_cast<double>(four - two) / 2;
    CHECK(of_chunk > 0.8 * static_cast<double>(rows));
    CHECK(of_chunk < 1.25 * static_cast<double>(rows));
    CHECK(of_chunk < static_cast<double>(all) - 12);
  }
}

}  // namespace
}  // namespace plimsoll
