#include "ir/machine/device.h"
#include "runtime/cpu/cpu_catalog.h"
#include "runtime/cuda/cuda_catalog.h"
#include "runtime/executor.h"
#include "runtime/single_op_plan.h"

#include <doctest/doctest.h>

// Executors refuse plans of other versions before anything is allocated, on machines without a GPU too.

namespace plimsoll {
namespace {

// Why the plan is refused; empty where it is not.
std::string refusal(const Plan& plan) {
  Result<std::unique_ptr<Executor>> executor = Executor::create(plan, {});
  return executor ? std::string() : take_diag(executor.takeError()).text();
}

void check_refusals(const KernelCatalog& catalog, const DeviceDescription& device) {
  CAPTURE(device.name);
  const OpDef& op = get_op("sum_squares");
  const Type x(DType::F32, {100'000}), codes(DType::I32, {100'000});
  const Type* const operands[] = {&x};
  const Attrs none;
  const OpCall call(op, none, operands);
  const Types results = llvm::cantFail(infer(call));
  const KernelCandidate kernel = catalog.candidates(op, call, results).front();
  REQUIRE(kernel.workspace_bytes > 4);
  const std::string of_plan = "slot2: kernel '" + kernel.name + "' of sum_squares";

  // A GPU's plan is refused for another reason where there is no GPU.
  CHECK_FALSE(llvm::StringRef(refusal(plan_of({op, call, results, kernel.name, kernel.workspace_bytes}, device)))
                  .contains("slot2"));
  const std::string needed = of_plan + " takes " + std::to_string(kernel.workspace_bytes) + " bytes of workspace";
  CHECK(refusal(plan_of({op, call, results, kernel.name, kernel.workspace_bytes - 4}, device)) ==
        needed + ", the plan gives it " + std::to_string(kernel.workspace_bytes - 4) + "; compile it again");
  CHECK(refusal(plan_of({op, call, results, kernel.name}, device)) ==
        needed + ", the plan gives it 0; compile it again");

  const std::string no_kernel = " is in the plan, and this program has none for such a call; compile it again";
  CHECK(refusal(plan_of({op, call, results, "plain"}, device)) == "slot2: kernel 'plain' of sum_squares" + no_kernel);
  Plan of_codes = plan_of({op, call, results, kernel.name, kernel.workspace_bytes}, device);
  of_codes.slots[0].type = codes;
  CHECK(refusal(of_codes) == of_plan + no_kernel);
}

TEST_SUITE("unit") {
  TEST_CASE(
      "plans whose kernels take more workspace now, are gone or take other calls are refused as they are loaded") {
    const DeviceCatalog devices = llvm::cantFail(DeviceCatalog::builtin());
    const DeviceDescription cpu = llvm::cantFail(devices.find("cpu")), h200 = llvm::cantFail(devices.find("h200"));
    check_refusals(CpuCatalog(), cpu);
    check_refusals(CudaCatalog(h200), h200);
  }
}

}  // namespace
}  // namespace plimsoll
