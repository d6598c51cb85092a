#include "ir/additive.h"

#include "ir/evaluate.h"
#include "tests/support/sample_tensors.h"

#include <doctest/doctest.h>

#include <cmath>
#include <set>

// Whether ops are additive in an operand, as their references compute it on the records' samples.

namespace plimsoll {
namespace {

constexpr double tolerance = 1e-9;  // of sums in double

Tensor sum_of(const Tensor& a, const Tensor& b) {
  Tensor sum(a.type());
  for (int64_t i = 0; i < a.type().elements(); ++i) sum.view().set(i, a.get(i) + b.get(i));
  return sum;
}

// Of a sample in double, with one operand as given.
std::vector<Tensor> results_with(const OpDef& op, const Attrs& attrs, llvm::ArrayRef<const Tensor*> operands,
                                 size_t changed, const Tensor& given) {
  llvm::SmallVector<const Tensor*, 4> read(operands.begin(), operands.end());
  read[changed] = &given;
  auto made = evaluate_node(op, attrs, read);
  REQUIRE_MESSAGE(bool(made), llvm::toString(made.takeError()));
  return std::move(*made);
}

bool adds_to_result(llvm::StringRef port) {
  return port == "bias" || port == "addend" || port == "more_dy" || port == "dlse";
}

// Whether the sample says so; none where something is added to the result, or the operand is no float.
std::optional<bool> is_additive(const OpDef& op, const Sample& sample, size_t operand) {
  if (operand >= sample.operands.size() || operand >= op.operands.size()) return std::nullopt;
  std::vector<Tensor> tensors(sample.operands.size()), others(1);
  llvm::SmallVector<const Tensor*, 4> operands;
  for (size_t i = 0; i < sample.operands.size(); ++i) {
    const SampleOperand& each = sample.operands[i];
    const bool absent = each.fill == SampleOperand::Fill::Absent;
    if (!absent && i < op.operands.size() && adds_to_result(op.operands[i].name)) return std::nullopt;
    const Type type(is_float(each.type.dtype) ? DType::F64 : each.type.dtype, each.type.shape);
    if (!absent) tensors[i] = sample_tensor(each, type, 1, static_cast<uint32_t>(i));
    if (i == operand) {
      if (absent || !is_float(type.dtype)) return std::nullopt;
      others[0] = sample_tensor(each, type, 2, static_cast<uint32_t>(i));
    }
    operands.push_back(absent ? nullptr : &tensors[i]);
  }
  Attrs attrs;
  for (const Attrs::Entry& entry : sample.attrs.entries()) {
    const auto* dtype = std::get_if<DType>(&entry.second);
    attrs.set(entry.first, dtype && is_float(*dtype) ? Attr(DType::F64) : entry.second);
  }
  const Tensor both = sum_of(tensors[operand], others[0]);
  const std::vector<Tensor> a = results_with(op, attrs, operands, operand, tensors[operand]),
                            b = results_with(op, attrs, operands, operand, others[0]),
                            sum = results_with(op, attrs, operands, operand, both);
  const size_t results = is_gradient_of_result(op, operand) ? sum.size() : 1;
  for (size_t r = 0; r < results; ++r)
    for (int64_t i = 0; i < sum[r].type().elements(); ++i) {
      const double expected = a[r].get(i) + b[r].get(i);
      if (!(std::abs(sum[r].get(i) - expected) <= tolerance * (1 + std::abs(expected)))) return false;
    }
  return true;
}

TEST_SUITE("unit") {
  TEST_CASE("ops are additive where that is said of them, and are not where that is") {
    int64_t additive = 0;
    std::set<std::string> others;
    for (const OpDef* op : all_ops()) {
      // Their numbers are defined in f32, and a body says its types.
      const bool is_f32 = op->name.startswith("dequantize") || op->name == "adamw_8bit" || op->name == "fused" ||
                          op->name.contains("f8");
      if (is_f32 || op->collective) continue;
      CAPTURE(op->name.str());
      for (size_t operand = 0; operand < op->operands.size(); ++operand) {
        const Additive said = additive_in(*op, operand);
        if (said == Additive::Unknown) continue;
        CAPTURE(operand);
        bool differs = false;
        int64_t samples = 0;
        for (const Sample& sample : op->samples()) {
          const std::optional<bool> is_sum = is_additive(*op, sample, operand);
          if (!is_sum) continue;
          ++samples;
          differs |= !*is_sum;
          if (said == Additive::Yes) CHECK(*is_sum);
          additive += said == Additive::Yes;
        }
        if (said == Additive::No && samples > 0) CHECK(differs);
        if (said == Additive::No && samples > 0) others.insert(op->name.str());
      }
    }
    CHECK(additive > 50);
    CHECK(others.count("rms_norm") + others.count("gelu") + others.count("div") == 3);
  }
}

}  // namespace
}  // namespace plimsoll
