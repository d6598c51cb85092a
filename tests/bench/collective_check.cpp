#include "frontend/api/job.h"
#include "ir/builder.h"
#include "ir/evaluate.h"
#include "runtime/comm/communicator.h"
#include "runtime/executor.h"
#include "runtime/single_op_plan.h"
#include "tests/support/collective_calls.h"

#include <cstdio>
#include <cstring>

// Runs every collective by itself on the ranks that a launcher has started, by each of its kernels, and compares with
// the reference.
//
// start_ranks.py 2 collective_check [--device h200]      the default is cpu

namespace plimsoll {
namespace {

Result<Tensor> run(const Graph& graph, const KernelCandidate& kernel, const DeviceDescription& device,
                   Communicator& ranks, const Tensor& x) {
  const Node& node = graph.node(graph.first_node());
  const llvm::SmallVector<const Type*, 4> types = operand_types(graph, node);
  const Types results = result_types(graph, node);
  Plan plan =
      plan_of({*node.op, OpCall(*node.op, node.attrs, types), results, kernel.name, kernel.workspace_bytes}, device);
  plan.mesh[MeshAxis::Data] = ranks.ranks();
  const Instruction& only = plan.functions.front().instructions.front();
  ExecutorOptions options;
  options.threads = 1;
  options.ranks = &ranks;
  Result<std::unique_ptr<Executor>> executor = Executor::create(plan, options);
  if (!executor) return executor.takeError();
  if (Status s = (*executor)->write(only.operands[0], [&](const TensorView& bytes) {
        std::memcpy(bytes.data, x.data(), static_cast<size_t>(bytes.type.bytes()));
        return Status::success();
      }))
    return s;
  if (Result<int64_t> ran = (*executor)->run(0); !ran) return ran.takeError();
  Tensor made(results.front());
  if (Status s = (*executor)->read_into(only.results[0], made.view())) return s;
  return made;
}

// Gives how many kernels were compared.
Result<int64_t> check(const testing::CollectiveCall& call, const DeviceDescription& device, Communicator& ranks) {
  const int64_t count = ranks.ranks();
  Mesh mesh;
  mesh[MeshAxis::Data] = count;
  Graph graph;
  const ValueId x = graph.add_input("x", call.x);
  Builder b(graph);
  graph.outputs = {{"y", b.emit(call.op, {x}, testing::in_group(call, MeshAxis::Data, count))}};
  const std::vector<Tensor> xs = testing::whole_numbers(call.x, static_cast<size_t>(count), 7);
  std::vector<Bindings> bindings;
  for (const Tensor& each : xs) bindings.push_back({{x, &each}});
  Result<std::vector<Evaluation>> expected = evaluate_on_ranks(graph, mesh, bindings);
  if (!expected) return expected.takeError();
  const auto own = static_cast<size_t>(ranks.rank());
  const Node& node = graph.node(graph.first_node());
  const llvm::SmallVector<const Type*, 4> types = operand_types(graph, node);
  int64_t kernels = 0;
  for (const KernelCandidate& kernel : kernel_catalog_for(device)->candidates(
           *node.op, OpCall(*node.op, node.attrs, types), result_types(graph, node))) {
    if (kernel.name == "reference") continue;
    Result<Tensor> got = run(graph, kernel, device, ranks, xs[own]);
    if (!got) return in_context(call.op + " by " + kernel.name, got.takeError());
    if (!(*got == (*expected)[own].outputs.front()))
      return model_error(call.op + " of " + to_string(call.x) + " by " + kernel.name + " is not its reference");
    ++kernels;
  }
  return kernels;
}

Result<int64_t> check_all(llvm::StringRef device_name) {
  Result<DeviceCatalog> devices = DeviceCatalog::builtin();
  if (!devices) return devices.takeError();
  Result<DeviceDescription> device = devices->find(device_name);
  if (!device) return device.takeError();
  Result<std::unique_ptr<Communicator>> ranks = connect_ranks();
  if (!ranks) return ranks.takeError();
  if (!*ranks || (*ranks)->ranks() == 1) return usage_error("start it as several ranks");
  int64_t kernels = 0;
  for (const testing::CollectiveCall& call : testing::collective_calls((*ranks)->ranks())) {
    Result<int64_t> checked = check(call, *device, **ranks);
    if (!checked) return in_context("rank " + llvm::Twine((*ranks)->rank()), checked.takeError());
    kernels += *checked;
  }
  return kernels;
}

}  // namespace
}  // namespace plimsoll

int main(int argc, char** argv) {
  const bool is_named = argc == 3 && std::strcmp(argv[1], "--device") == 0;
  if (argc != 1 && !is_named) {
    std::fprintf(stderr, "usage: collective_check [--device NAME]\n");
    return 2;
  }
  plimsoll::Result<int64_t> checked = plimsoll::check_all(is_named ? argv[2] : "cpu");
  if (!checked) {
    std::fprintf(stderr, "%s\n", plimsoll::take_diag(checked.takeError()).text().c_str());
    return 1;
  }
  std::printf("%lld passed, 0 failed\n", static_cast<long long>(*checked));
  return 0;
}
