#include "ir/linear_form.h"

#include "ir/evaluate.h"
#include "ir/support/strings.h"
#include "tests/support/sample_tensors.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <map>

// In which operands ops are linear, as their references compute it on the records' samples, is what records say.

namespace plimsoll {
namespace {

constexpr double tolerance = 1e-9;  // of sums in double

// A set of operands, by their places in a call.
using OperandSet = uint32_t;
bool has(OperandSet set, size_t operand) { return (set >> operand & 1) != 0; }

// A sample in double, and other values for its operands.
class LinearSample {
 public:
  LinearSample(const OpDef& op, const Sample& sample) : op_(op) {
    for (size_t i = 0; i < sample.operands.size(); ++i) {
      const SampleOperand& each = sample.operands[i];
      is_present_.push_back(each.fill != SampleOperand::Fill::Absent);
      const Type type(is_float(each.type.dtype) ? DType::F64 : each.type.dtype, each.type.shape);
      for (uint32_t turn : {0, 1})
        values_[turn].push_back(is_present_[i] ? sample_tensor(each, type, turn + 1, static_cast<uint32_t>(i))
                                               : Tensor());
      if (is_present_[i] && is_float(type.dtype)) floats_ |= 1U << i;
    }
    for (const Attrs::Entry& entry : sample.attrs.entries()) {
      const auto* dtype = std::get_if<DType>(&entry.second);
      attrs_.set(entry.first, dtype && is_float(*dtype) ? Attr(DType::F64) : entry.second);
    }
    of_first_ = results(0, Given::First);
  }

  OperandSet floats() const { return floats_; }
  llvm::ArrayRef<bool> is_present() const { return is_present_; }
  const Attrs& attrs() const { return attrs_; }
  OpCall call(llvm::SmallVectorImpl<const Type*>& types) const {
    for (size_t i = 0; i < is_present_.size(); ++i) types.push_back(is_present_[i] ? &values_[0][i].type() : nullptr);
    return OpCall(op_, attrs_, types);
  }
  size_t result_count() const { return of_first_.size(); }
  bool has_float_result(bool first) const {
    for (size_t r = first ? 0 : 1; r < (first ? 1 : result_count()); ++r)
      if (is_float(of_first_[r].type().dtype)) return true;
    return false;
  }

  // Is what the sum of two values of these operands gives the sum of what each gives? Of result 0, or of the others.
  bool is_additive(OperandSet operands, bool first) const {
    const std::vector<Tensor> other = results(operands, Given::Second), sum = results(operands, Given::Sum);
    for (size_t r = first ? 0 : 1; r < (first ? 1 : sum.size()); ++r) {
      if (!is_float(sum[r].type().dtype)) continue;
      for (int64_t i = 0; i < sum[r].type().elements(); ++i) {
        const double expected = of_first_[r].get(i) + other[r].get(i);
        if (!(std::abs(sum[r].get(i) - expected) <= tolerance * (1 + std::abs(expected)))) return false;
      }
    }
    return true;
  }

 private:
  enum class Given : uint8_t { First, Second, Sum };
  std::vector<Tensor> results(OperandSet changed, Given given) const {
    std::vector<Tensor> sums(is_present_.size());
    llvm::SmallVector<const Tensor*, 8> operands;
    for (size_t i = 0; i < is_present_.size(); ++i) {
      operands.push_back(is_present_[i] ? &values_[given == Given::Second && has(changed, i)][i] : nullptr);
      if (given != Given::Sum || !has(changed, i)) continue;
      sums[i] = Tensor(values_[0][i].type());
      for (int64_t e = 0; e < sums[i].type().elements(); ++e)
        sums[i].view().set(e, values_[0][i].get(e) + values_[1][i].get(e));
      operands[i] = &sums[i];
    }
    auto made = evaluate_node(op_, attrs_, operands);
    REQUIRE_MESSAGE(bool(made), llvm::toString(made.takeError()));
    return std::move(*made);
  }

  const OpDef& op_;
  Attrs attrs_;
  llvm::SmallVector<bool, 8> is_present_;
  std::vector<Tensor> values_[2];
  OperandSet floats_ = 0;
  std::vector<Tensor> of_first_;
};

// In some sample no set of operands with this one is additive, but for what smaller sets are.
bool is_in_none(const LinearSample& sample, size_t operand, bool first) {
  llvm::SmallVector<OperandSet, 8> additive;
  for (int size = 1; size <= std::popcount(sample.floats()); ++size)
    for (OperandSet set = 1; set <= sample.floats(); ++set) {
      if ((set & sample.floats()) != set || std::popcount(set) != size) continue;
      if (llvm::any_of(additive, [&](OperandSet smaller) { return (smaller & set) == smaller; })) continue;
      if (!sample.is_additive(set, first)) continue;
      if (has(set, operand)) return false;
      additive.push_back(set);
    }
  return true;
}

// Sums of one factor of each product are sums of the results.
int64_t check_products(const LinearSample& sample, llvm::ArrayRef<PresentTerm> terms, bool first) {
  int64_t checked = 0;
  OperandSet factors = 0;
  for (const PresentTerm& term : terms)
    for (size_t factor : term.factors) factors |= 1U << factor;
  factors &= sample.floats();
  for (OperandSet set = 1; set <= factors; ++set) {
    if ((set & factors) != set) continue;
    const bool is_one_of_each = llvm::all_of(terms, [&](const PresentTerm& term) {
      return llvm::count_if(term.factors, [&](size_t factor) { return has(set, factor); }) == 1;
    });
    if (!is_one_of_each) continue;
    CAPTURE(set);
    CHECK(sample.is_additive(set, first));
    ++checked;
  }
  return checked;
}

// Codes and fused bodies say their own types.
bool has_own_types(const OpDef& op) {
  return op.name == "fused" || op.name == "adamw_8bit" || starts_with(op.name, "dequantize");
}

void check_forms(const OpDef& op, bool first, std::map<std::string, int64_t>& checked) {
  const LinearForm& form = first ? op.linear.first : op.linear.others;
  std::map<size_t, bool> may_be_linear;  // by operand that is no factor
  int64_t products = 0;
  for (const Sample& each : op.samples()) {
    const LinearSample sample(op, each);
    if (!sample.has_float_result(first)) continue;
    products += check_products(sample, present_terms(form, op.operands, sample.is_present()), first);
    for (size_t i = 0; i < sample.is_present().size(); ++i)
      if (has(sample.floats(), i) && !form.has(op.operands, i)) {
        auto [at, is_new] = may_be_linear.try_emplace(i, true);
        if (at->second) at->second = !is_in_none(sample, i, first);
      }
  }
  for (const auto& [operand, is_linear] : may_be_linear) {
    INFO((first ? "result 0" : "the other results"), " may be linear in operand ", operand, ", which it does not name");
    CHECK(!is_linear);
  }
  if (!form.empty()) CHECK(products > 0);
  checked[op.name.str()] += products;
}

// A dimension that is cut in operands and in no result is summed over.
void check_dims(const OpDef& op) {
  for (const Sample& each : op.samples()) {
    const LinearSample sample(op, each);
    llvm::SmallVector<const Type*, 8> types;
    const OpCall call = sample.call(types);
    auto results = infer(call);
    REQUIRE(bool(results));
    for (size_t i = 0; i < types.size(); ++i)
      for (int64_t dim = 0; types[i] && dim < types[i]->rank(); ++dim) {
        const Cut all{dim, {types[i]->shape[static_cast<size_t>(dim)]}};
        const auto divided = divide_call(op, call, *results, {CutAt::Side::Operand, i, all}, 1);
        if (!divided) continue;
        CAPTURE(i);
        CAPTURE(dim);
        if (divided->sums) CHECK(op.linear.first.sums_dims());
        const LinearTerm* term = op.linear.first.empty() ? nullptr : op.linear.first.terms().begin();
        if (term && term->summed == SummedDims::Shared && divided->operands[0] && divided->operands[1])
          CHECK(divided->sums);
      }
    const auto chunk = chunk_of(op, call, {0, 1});
    if (chunk && !op.linear.first.empty() && combine_of(*chunk, 0) != Combine::Rows) CHECK(op.linear.first.sums_dims());
  }
}

TEST_SUITE("unit") {
  TEST_CASE("ops are linear in what their records say, and in nothing else") {
    std::map<std::string, int64_t> checked;
    for (const OpDef* op : all_ops()) {
      INFO(op->name.str());
      for (const LinearForm* form : {&op->linear.first, &op->linear.others})
        for (const LinearTerm& term : form->terms())
          for (llvm::StringRef factor : term.factors)
            CHECK(llvm::any_of(op->operands, [&](const Port& port) { return port.name == factor; }));
      if (has_own_types(*op) || op->linear.first.is_open()) continue;
      check_forms(*op, true, checked);
      check_forms(*op, false, checked);
      check_dims(*op);
    }
    for (const char* op : {"add", "linear", "linear_dw", "layer_norm_grad", "cross_entropy_grad", "concat"}) {
      CAPTURE(op);
      CHECK(checked[op] > 0);
    }
    CHECK(checked["rms_norm"] + checked["gelu"] + checked["adamw"] == checked["rms_norm"]);
  }

  TEST_CASE("products are of the operands that a call has") {
    const Ports ports{"x", "w", "bias?", "others*"};
    const LinearForm form("sum(x * w) + bias + others");
    const auto places = [&](llvm::ArrayRef<bool> is_present) {
      std::string text;
      for (const PresentTerm& term : present_terms(form, ports, is_present)) {
        text += text.empty() ? "" : " + ";
        for (size_t factor : term.factors) text += std::to_string(factor);
      }
      return text;
    };
    CHECK(places({true, true, true}) == "01 + 2");
    CHECK(places({true, true, false, true, true}) == "01 + 3 + 4");
    CHECK(places({true, false}) == "0");
    CHECK(form.has(ports, 4));
    CHECK(form.sums_dims());
    CHECK(LinearForm("a @ b").terms()[0].summed == SummedDims::Shared);
    CHECK(LinearForm("?").is_open());
  }
}

}  // namespace
}  // namespace plimsoll
