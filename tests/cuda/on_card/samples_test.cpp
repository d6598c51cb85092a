#include "tests/cuda/on_card/case_on_card.h"

// Every op of the registry on its own samples, by every CUDA kernel that accepts them, as f32 and with 16-bit floats,
// apart and with every overlap the record lists, against the reference.

using namespace plimsoll;
using namespace plimsoll::testing;

namespace {

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
  const CudaCatalog catalog(card_under_test(), /*any_order=*/true);
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
