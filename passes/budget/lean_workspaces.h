#pragma once

// Kernels with less workspace, as one more choice of the search for a budget. Which calls have them does not depend on
// the budget.

#include "ir/machine/kernel_catalog.h"
#include "ir/plan/plan.h"

#include <set>
#include <string>

namespace plimsoll {

// A candidate of a catalog that is another one with less workspace has its name with this behind it.
inline constexpr llvm::StringLiteral lean_suffix = "_lean";

// Calls by their op and types.
using CallKeys = std::set<std::string>;

// Sets of calls that may have less workspace, each with all calls of the one before; none is empty. The first has those
// that take no longer with it, the last all, and between them are those of the slower ones at which most is live in
// `plain`, the plan with the usual kernels.
std::vector<CallKeys> lean_call_sets(const Plan& plain, const KernelCatalog& catalog);

// A catalog that prefers kernels with less workspace for some calls. None is predicted to be faster than the usual one.
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

// Calls with less workspace that take as long as with the usual one get that where the layout has a hole for it and the
// peak stays where it is. No other byte moves. Returns how many calls are left with less. `catalog` is without them.
int64_t give_workspaces_back(Plan& plan, const KernelCatalog& catalog);

}  // namespace plimsoll
