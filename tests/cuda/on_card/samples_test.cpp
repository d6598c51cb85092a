#include "ir/machine/device.h"
#include "runtime/cuda/cuda_catalog.h"
#include "runtime/executor.h"
#include "runtime/single_op_plan.h"
#include "tests/kernels/kernel_run.h"

#include <cstring>

// Every op of the registry on its own samples, by every CUDA kernel that accepts them, as f32 and with 16-bit floats,
// apart and with every overlap the record lists, against the reference.

using namespace plimsoll;
using namespace plimsoll::testing;

namespace {

constexpr int64_t guard_bytes = 256;

DeviceDescription card() {
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
                card(), guard_bytes);
    guard_ = static_cast<SlotId>(plan_.slots.size() - 1);
  }

  // Empty when a library has no such alternative for the call.
  std::vector<Tensor> run(const KernelCase& c) {
    Result<std::unique_ptr<Executor>> executor = Executor::create(plan_, {});
    if (!executor) {
      const std::string why = llvm::toString(executor.takeError());
      if (why.find("no algorithm of rank") == std::string::npos) FAIL(why);
      return {};
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
    Result<int64_t> ran = (*executor)->run(0);
    if (!ran) FAIL(llvm::toString(ran.takeError()));
    std::vector<Tensor> results;
    for (SlotId result : instruction.results) results.push_back(read(**executor, result));
    const Tensor guard = read(**executor, guard_);
    for (int64_t i = 0; i < guard_bytes; ++i) REQUIRE(guard.get_int(i) == 0xa5);
    return results;
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

// Which operands of a sample are stored in 16 bits.
enum class Storage { AsGiven, AllBf16, AllF16, FirstBf16 };

std::vector<SampleOperand> stored(const Sample& sample, Storage storage) {
  std::vector<SampleOperand> operands(sample.operands.begin(), sample.operands.end());
  if (operands.empty()) return operands;
  const Type first = operands.front().type;
  for (SampleOperand& operand : operands) {
    if (operand.type.dtype != DType::F32 || operand.fill == SampleOperand::Fill::Absent) continue;
    if (storage == Storage::AllBf16 || (storage == Storage::FirstBf16 && operand.type == first))
      operand.type.dtype = DType::BF16;
    if (storage == Storage::AllF16) operand.type.dtype = DType::F16;
  }
  return operands;
}

bool is_accepted(const KernelCase& c) {
  const auto types = c.types();
  Result<Types> results = infer(OpCall(c.op, c.attrs, types));
  if (results) return true;
  llvm::consumeError(results.takeError());
  return false;
}

std::vector<KernelCase> cases_of(const OpDef& op, Storage storage, uint32_t seed) {
  std::vector<KernelCase> cases;
  for (const Sample& sample : op.samples()) {
    cases.emplace_back(op.name, sample.attrs, stored(sample, storage), seed++);
    if (!is_accepted(cases.back())) cases.pop_back();
  }
  return cases;
}

std::vector<KernelCandidate> candidates_of(const CudaCatalog& catalog, const KernelCase& c) {
  const auto types = c.types();
  return catalog.candidates(c.op, OpCall(c.op, c.attrs, types), result_types_of(c));
}

// The kernels that accept any of the cases, each once.
std::vector<std::string> kernels_of(const CudaCatalog& catalog, llvm::ArrayRef<KernelCase> cases) {
  std::vector<std::string> names;
  for (const KernelCase& c : cases)
    for (const KernelCandidate& kernel : candidates_of(catalog, c))
      if (!llvm::is_contained(names, kernel.name)) names.push_back(kernel.name);
  return names;
}

void check_kernel(const CudaCatalog& catalog, llvm::StringRef name, const KernelCase& c) {
  for (const KernelCandidate& kernel : candidates_of(catalog, c)) {
    if (kernel.name != name) continue;
    const std::vector<Tensor> wanted = run_reference(c);
    for (const std::vector<InPlace>& overlaps : overlaps_of(c)) {
      INFO(overlaps.size(), " results in place");
      check_results(c, CaseOnCard(c, kernel, overlaps).run(c), wanted);
    }
  }
}

// A subcase for each op, and in it for each kernel: `--subcase-exclude` takes either name, `--subcase` wants both, as
// in conv,cudnn*.
void check_all(Storage storage) {
  const CudaCatalog catalog(card(), /*any_order=*/true);
  uint32_t seed = 1;
  for (const OpDef* op : all_ops()) {
    seed += 100;
    SUBCASE(op->name.str().c_str()) {
      const std::vector<KernelCase> cases = cases_of(*op, storage, seed);
      for (const std::string& kernel : kernels_of(catalog, cases)) SUBCASE(kernel.c_str()) {
          for (size_t i = 0; i < cases.size(); ++i) {
            INFO("case ", i);
            check_kernel(catalog, kernel, cases[i]);
          }
        }
    }
  }
}

}  // namespace

TEST_CASE("every CUDA kernel agrees with the reference on the op's samples, stored as given") {
  check_all(Storage::AsGiven);
}
TEST_CASE("every CUDA kernel agrees with the reference on samples in bf16") { check_all(Storage::AllBf16); }
TEST_CASE("every CUDA kernel agrees with the reference on samples in f16") { check_all(Storage::AllF16); }
TEST_CASE("every CUDA kernel agrees with the reference on samples whose first operand is bf16") {
  check_all(Storage::FirstBf16);
}
