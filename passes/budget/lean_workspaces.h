#pragma once

// Kernels with less workspace, as one more choice of the search for a budget.

#include "ir/machine/kernel_catalog.h"
#include "ir/plan/plan.h"

#include <set>
#include <string>

namespace plimsoll {

// A candidate of a catalog that is another one with less workspace has its name with this behind it. It may be slower,
// which measured times know.
inline constexpr llvm::StringLiteral lean_suffix = "_lean";

// Calls by their op and types.
using CallKeys = std::set<std::string>;

// The calls of a plan without remats at which more bytes are live than a budget of the device has room for, and for
// which the catalog has a kernel with less workspace than the plan's.
CallKeys lean_calls_for(const Plan& plain, int64_t budget_bytes, const KernelCatalog& catalog);

// A catalog that prefers kernels with less workspace for some calls.
class LeanCatalog : public KernelCatalog {
 public:
  // `all` outlives it.
  LeanCatalog(const KernelCatalog& all, CallKeys lean) : all_(all), lean_(std::move(lean)) {}
  std::vector<KernelCandidate> candidates(const OpDef& op, const OpCall& call,
                                          llvm::ArrayRef<Type> results) const override;
  KernelPreferences preferences() const override { return all_.preferences(); }

 private:
  const KernelCatalog& all_;
  const CallKeys lean_;
};

}  // namespace plimsoll
