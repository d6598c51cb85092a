#include "ir/linear_form.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

namespace plimsoll {

bool LinearForm::has(const Ports& operands, size_t operand) const {
  const llvm::StringRef name = operands[std::min(operand, operands.size() - 1)].name;
  return llvm::any_of(terms_, [&](const LinearTerm& term) { return llvm::is_contained(term.factors, name); });
}

bool LinearForm::sums_dims() const {
  return llvm::any_of(terms_, [](const LinearTerm& term) { return term.summed != SummedDims::None; });
}

llvm::SmallVector<PresentTerm, 4> present_terms(const LinearForm& form, const Ports& operands,
                                                llvm::ArrayRef<bool> is_present) {
  llvm::SmallVector<PresentTerm, 4> terms;
  for (const LinearTerm& term : form.terms()) {
    PresentTerm made{{}, term.summed};
    for (const llvm::StringRef factor : term.factors) {
      const size_t port = index_of(operands, factor);
      if (port < is_present.size() && is_present[port]) made.factors.push_back(port);
    }
    if (made.factors.empty() && !term.stays) continue;
    terms.push_back(made);
    if (made.factors.empty() || !operands[made.factors.back()].repeats()) continue;
    for (size_t i = made.factors.back() + 1; i < is_present.size(); ++i)
      if (is_present[i]) terms.push_back({{i}, term.summed});
  }
  return terms;
}

}  // namespace plimsoll
