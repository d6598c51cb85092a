#pragma once

// Runs one op by one CUDA kernel on the card.

#include "ir/machine/device.h"
#include "runtime/cuda/cuda_catalog.h"
#include "runtime/executor.h"
#include "runtime/single_op_plan.h"
#include "tests/kernels/kernel_run.h"

#include <cstring>

namespace plimsoll::testing {

inline constexpr int64_t guard_bytes = 256;

inline DeviceDescription card_under_test() {
  Result<DeviceCatalog> devices = DeviceCatalog::builtin();
  REQUIRE(bool(devices));
  Result<DeviceDescription> device = devices->find("h200");
  REQUIRE(bool(device));
  return *device;
}

// One instruction of a case on the card, with guard bytes behind its workspace.
class CaseOnCard {
 public:
  CaseOnCard(const KernelCase& c, const KernelCandidate& kernel, llvm::ArrayRef<InPlace> overlaps) {
    const auto types = c.types();
    plan_ =
        plan_of({c.op, OpCall(c.op, c.attrs, types), result_types_of(c), kernel.name, kernel.workspace_bytes, overlaps},
                card_under_test(), guard_bytes);
    guard_ = static_cast<SlotId>(plan_.slots.size() - 1);
  }

  // Ready to run; null when a library has no such alternative for the call.
  std::unique_ptr<Executor> open(const KernelCase& c) const {
    Result<std::unique_ptr<Executor>> executor = Executor::create(plan_, {});
    if (!executor) {
      const std::string why = llvm::toString(executor.takeError());
      if (why.find("no algorithm of rank") == std::string::npos) FAIL(why);
      return nullptr;
    }
    const Instruction& instruction = plan_.functions.front().instructions.front();
    for (SlotId result : instruction.results) fill(**executor, result, 0xff);
    fill(**executor, guard_, 0xa5);
    for (size_t i = 0; i < c.tensors.size(); ++i)
      if (c.present[i])
        require((*executor)->write(instruction.operands[i], [&](const TensorView& view) {
          std::memcpy(view.data, c.tensors[i].data(), static_cast<size_t>(view.type.bytes()));
          return Status::success();
        }));
    return std::move(*executor);
  }

  static void run_once(Executor& executor) {
    if (Result<int64_t> ran = executor.run(0); !ran) FAIL(llvm::toString(ran.takeError()));
  }

  std::vector<Tensor> results(Executor& executor) const {
    std::vector<Tensor> results;
    for (SlotId result : plan_.functions.front().instructions.front().results)
      results.push_back(read(executor, result));
    const Tensor guard = read(executor, guard_);
    for (int64_t i = 0; i < guard_bytes; ++i) REQUIRE(guard.get_int(i) == 0xa5);
    return results;
  }

  // Empty when a library has no such alternative for the call.
  std::vector<Tensor> run(const KernelCase& c) const {
    const std::unique_ptr<Executor> executor = open(c);
    if (!executor) return {};
    run_once(*executor);
    return results(*executor);
  }

 private:
  static void require(Status status) {
    if (status) FAIL(llvm::toString(std::move(status)));
  }

  static void fill(Executor& executor, SlotId slot, int byte) {
    require(executor.write(slot, [&](const TensorView& view) {
      std::memset(view.data, byte, static_cast<size_t>(view.type.bytes()));
      return Status::success();
    }));
  }

  static Tensor read(Executor& executor, SlotId slot) {
    Tensor tensor;
    require(executor.read(slot, [&](const TensorView& view) {
      tensor = Tensor(view.type, view.data);
      return Status::success();
    }));
    return tensor;
  }

  Plan plan_;
  SlotId guard_ = -1;
};

inline std::vector<KernelCandidate> candidates_of(const CudaCatalog& catalog, const KernelCase& c) {
  const auto types = c.types();
  return catalog.candidates(c.op, OpCall(c.op, c.attrs, types), result_types_of(c));
}

// The first kernel's results have the reference's bytes.
inline void check_bytes(const KernelCase& c) {
  const CudaCatalog catalog(card_under_test(), /*any_order=*/true);
  const std::vector<Tensor> wanted = run_reference(c);
  const KernelCandidate kernel = candidates_of(catalog, c).front();
  REQUIRE(kernel.name != "reference");
  const std::vector<Tensor> got = CaseOnCard(c, kernel, {}).run(c);
  REQUIRE(got.size() == wanted.size());
  for (size_t r = 0; r < wanted.size(); ++r)
    CHECK(std::memcmp(got[r].data(), wanted[r].data(), static_cast<size_t>(wanted[r].type().bytes())) == 0);
}

// Each kernel that accepts the case is near the reference, with the same bits when it runs again.
inline void check_kernels_twice(const CudaCatalog& catalog, const KernelCase& c) {
  for (const KernelCandidate& kernel : candidates_of(catalog, c)) {
    if (kernel.name == "reference") continue;
    const std::vector<Tensor> got = CaseOnCard(c, kernel, {}).run(c);
    check_results(c, got, run_reference(c));
    const std::vector<Tensor> again = CaseOnCard(c, kernel, {}).run(c);
    for (size_t i = 0; i < got.size(); ++i)
      CHECK(std::memcmp(got[i].data(), again[i].data(), static_cast<size_t>(got[i].type().bytes())) == 0);
  }
}

}  // namespace plimsoll::testing
