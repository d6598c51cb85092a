#include "passes/budget/budget_report.h"

#include "ir/plan/summary.h"
#include "ir/support/units.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

namespace plimsoll {
namespace {

struct Alive {
  int64_t by_category[category_count] = {};
  std::vector<const Slot*> transient;  // at the peak, largest first
  const PlanFunction* function = nullptr;
};

Alive alive_at_peak(const Plan& plan) {
  Alive alive;
  auto peak = std::max_element(plan.functions.begin(), plan.functions.end(),
                               [](const auto& a, const auto& b) { return a.transient_bytes < b.transient_bytes; });
  alive.function = &*peak;
  int32_t function = static_cast<int32_t>(peak - plan.functions.begin()), instruction = peak->peak_instruction;
  for (const Slot& slot : plan.slots) {
    if (slot.space != MemorySpace::Device) continue;
    if (slot.function < 0) alive.by_category[static_cast<size_t>(slot.category)] += slot.bytes;
    // The instruction that writes over an operand has the operand's slot too.
    const bool is_first_owner = slot.in_place_of < 0 || slot.first < instruction;
    bool owns =
        slot.view_of < 0 && slot.part_of < 0 && is_first_owner && slot.offset >= plan.arenas.front().persistent_bytes;
    if (slot.function == function && owns && slot.first <= instruction && slot.last >= instruction)
      alive.transient.push_back(&slot);
  }
  std::stable_sort(alive.transient.begin(), alive.transient.end(),
                   [](const Slot* a, const Slot* b) { return a->bytes > b->bytes; });
  return alive;
}

// Persistent bytes by category, then the largest transient values.
std::vector<std::pair<std::string, int64_t>> list(const Alive& alive) {
  constexpr size_t most_values = 5;
  std::vector<std::pair<std::string, int64_t>> all;
  for (int i = 0; i < category_count; ++i)
    if (alive.by_category[i] > 0) all.emplace_back(category_name(static_cast<Category>(i)), alive.by_category[i]);
  for (const Slot* slot : llvm::ArrayRef<const Slot*>(alive.transient).take_front(most_values))
    all.emplace_back(slot->name, slot->bytes);
  return all;
}

// "stage 1 (rank 1, rtx4090) "
std::string who_needs(const Plan& plan) {
  if (plan.pipeline.schedule.empty()) return "";
  const int64_t ranks = plan.mesh.ranks_per_stage(), first = plan.stage * ranks;
  const std::string of_ranks = ranks == 1
                                   ? "rank " + std::to_string(first)
                                   : "ranks " + std::to_string(first) + " to " + std::to_string(first + ranks - 1);
  return "stage " + std::to_string(plan.stage) + " (" + of_ranks + ", " + plan.device.name + ") ";
}

// Of ranks on unlike devices that run one plan: " of rank 1 (rtx4090)".
std::string whose_budget(const Plan& plan) {
  if (plan.kinds.empty()) return "";
  const RankKind& least =
      *std::min_element(plan.kinds.begin(), plan.kinds.end(),
                        [](const RankKind& a, const RankKind& b) { return a.budget_bytes < b.budget_bytes; });
  return " of rank " + std::to_string(least.ranks.front()) + " (" + least.device.name + ")";
}

// Budgets within which these stages would fit. A stage that lacks nothing keeps its own.
std::string enough_for(llvm::ArrayRef<StageNeed> stages) {
  if (llvm::none_of(stages, [](const StageNeed& stage) { return stage.needs_bytes > stage.budget_bytes; })) return "";
  int64_t most = 0;
  bool alike = true;
  std::string each;
  for (const StageNeed& stage : stages) {
    const int64_t bytes =
        stage.needs_bytes <= stage.budget_bytes ? stage.budget_bytes : round_up_readable(stage.needs_bytes);
    most = std::max(most, bytes);
    alike &= stage.budget_bytes == stages.front().budget_bytes;
    each += (each.empty() ? "" : ", ") + format_bytes(bytes);
  }
  return alike ? "a budget of " + format_bytes(most) + " would be enough for every stage"
               : "budgets of " + each + " would be enough for the stages";
}

// Ranks of a host have equal shares of its memory.
std::string whose_share(const Plan& plan) {
  const int64_t all = plan.mesh.ranks(), of_host = plan.host.ranks_per_host;
  const int64_t ranks = of_host > 0 ? std::min(of_host, all) : all;
  if (plan.host.budget_bytes == 0 || ranks == 1) return "";
  return ", the share of each of a host's " + std::to_string(ranks) + " ranks in " +
         format_bytes(plan.host.budget_bytes);
}

}  // namespace

int64_t least_bytes(const Plan& plan) {
  const Arena& arena = plan.arenas.front();
  return plan.promised_bytes() - arena.bytes + arena.peak_live_bytes;
}

bool is_within_host_budget(const Plan& plan) {
  return llvm::all_of(plan.arenas, [](const Arena& arena) {
    return arena.space == MemorySpace::Device || arena.budget_bytes == 0 || arena.bytes <= arena.budget_bytes;
  });
}

bool is_within_budget(const Plan& plan) {
  return plan.promised_bytes() <= plan.arenas.front().budget_bytes && is_within_host_budget(plan);
}

Plan with_budget(Plan plan, int64_t budget_bytes) {
  plan.arenas.front().budget_bytes = budget_bytes;
  return plan;
}

bool needs_less(const Plan& a, const Plan& b) {
  return std::pair(!is_within_host_budget(a), a.promised_bytes()) <
         std::pair(!is_within_host_budget(b), b.promised_bytes());
}

bool is_better(const Plan& a, const Plan& b) {
  const bool a_fits = is_within_budget(a), b_fits = is_within_budget(b);
  if (a_fits != b_fits) return a_fits;
  return a_fits ? a.predicted_step_us < b.predicted_step_us : needs_less(a, b);
}

Shortfall shortfall_of(const CompileResult& result) {
  const Plan& smallest = result.plan;
  const Arena& arena = smallest.arenas.front();
  Alive alive = alive_at_peak(smallest);
  const Instruction& at = alive.function->instructions[alive.function->peak_instruction];
  const LargestInstruction largest = largest_instruction(smallest);
  const int64_t host_budget_bytes = result.host_budget_bytes,
                host_bytes = host_budget_bytes > 0 || smallest.arenas.size() > 1 ? smallest.host_bytes() : 0;
  std::string host_needs, host_budget;
  if (host_bytes > 0 || host_budget_bytes > 0) host_needs = " and " + format_bytes(host_bytes) + " of host memory";
  if (host_budget_bytes > 0)
    host_budget = " and " + format_bytes(host_budget_bytes) + " of host memory" + whose_share(smallest);
  return {who_needs(smallest) + "needs " + format_bytes(round_up_readable(smallest.promised_bytes())) + " (" +
              std::to_string(smallest.promised_bytes()) + " bytes: arena " + format_bytes(arena.bytes) + ", reserves " +
              format_bytes(smallest.device.reserve_bytes()) + ")" + host_needs + ", the budget" +
              whose_budget(smallest) + " is " + format_bytes(arena.budget_bytes) + host_budget,
          smallest.slots[at.results[0]].name + " in " + alive.function->name,
          describe(smallest, smallest.functions[largest.function].instructions[largest.instruction]),
          largest.least_bytes,
          enough_for(result.stages),
          list(alive)};
}

std::string shortfall(const CompileResult& result) {
  const Shortfall parts = shortfall_of(result);
  std::string alive;
  for (const auto& [name, bytes] : parts.alive_bytes)
    alive += (alive.empty() ? "" : ", ") + name + " " + format_bytes(bytes);
  return parts.needs + "; at the peak (" + parts.peak + "): " + alive + "; " + parts.largest + " alone needs " +
         format_bytes(parts.least_bytes) + (parts.enough.empty() ? "" : "; ") + parts.enough;
}

Result<Plan> fitting_plan(Result<CompileResult> result) {
  if (!result) return result.takeError();
  if (!result->fits) return budget_error(shortfall(*result));
  return std::move(result->plan);
}

}  // namespace plimsoll
