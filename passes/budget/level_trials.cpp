#include "passes/budget/level_trials.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

namespace plimsoll {

bool has_copies(const RematProblem& problem) {
  return llvm::any_of(problem.ops, [](const RematOp& op) { return is_copy(op.engine); });
}

double compute_us(const RematProblem& problem) {
  double us = 0;
  for (const RematOp& op : problem.ops) us += op.engine == Engine::Compute ? op.cost_us : 0;
  return us;
}

// Each value lives from its producer to its last reload.
int64_t host_bytes_of(const RematProblem& problem, const RematPlan& plan) {
  if (plan.reloads.empty()) return 0;
  std::vector<int32_t> last_reload(problem.value_bytes.size(), -1);
  for (const Reload& reload : plan.reloads) last_reload[reload.value] = reload.before;
  std::vector<int64_t> change(problem.ops.size() + 1, 0);
  for (int32_t o = 0; o < problem.op_count(); ++o)
    for (int32_t v : problem.ops[o].writes) {
      const int32_t last = last_reload[v];
      if (last < 0) continue;
      change[o] += problem.value_bytes[v];
      change[last] -= problem.value_bytes[v];
    }
  int64_t now = 0, most = 0;
  for (int64_t bytes : change) most = std::max(most, now += bytes);
  return most;
}

}  // namespace plimsoll
