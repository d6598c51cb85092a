#include "passes/budget.h"

#include "ir/units.h"

#include <algorithm>
#include <cstdio>

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
    if (slot.function < 0) alive.by_category[static_cast<size_t>(slot.category)] += slot.bytes;
    bool owns = slot.view_of < 0 && slot.in_place_of < 0 && slot.offset >= plan.arenas.front().persistent_bytes;
    if (slot.function == function && owns && slot.first <= instruction && slot.last >= instruction) alive.transient.push_back(&slot);
  }
  std::stable_sort(alive.transient.begin(), alive.transient.end(), [](const Slot* a, const Slot* b) { return a->bytes > b->bytes; });
  return alive;
}

std::string milliseconds(double us) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g ms", us / 1e3);
  return text;
}

// Persistent bytes by category, then the largest transient values.
std::string list(const Alive& alive) {
  std::string text;
  for (int i = 0; i < category_count; ++i)
    if (alive.by_category[i] > 0)
      text += (text.empty() ? "" : ", ") + category_name(static_cast<Category>(i)).str() + " " + format_bytes(alive.by_category[i]);
  for (size_t i = 0; i < alive.transient.size() && i < 5; ++i)
    text += ", " + alive.transient[i]->name + " " + format_bytes(alive.transient[i]->bytes);
  return text;
}

struct Lever {
  int64_t bytes;
  double step_us;
  std::string what;
};

double update_us(const Plan& plan) {
  double us = 0;
  for (size_t f = 0; f < plan.functions.size(); ++f)
    for (const Instruction& instruction : plan.functions[f].instructions)
      if (instruction.phase == Phase::Update) us += static_cast<double>(plan.calls_per_step(f)) * instruction.predicted_us;
  return us;
}

// Updates are bound by the bytes they move, so without optimizer state, read and written once, they take less by its share.
Lever without_optimizer_state(const Plan& plan, int64_t bytes) {
  int64_t moved = 0;
  for (const PlanFunction& function : plan.functions)
    for (const Instruction& instruction : function.instructions)
      if (instruction.phase == Phase::Update) moved += instruction.bytes_moved;
  double share = std::min(1.0, 2.0 * static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(moved, 1)));
  return {bytes, plan.predicted_step_us - share * update_us(plan), "an optimizer without state (--optimizer sgd)"};
}

// What changes the job, by the bytes it frees, most first.
std::string levers(const Plan& plan, const Alive& alive) {
  std::vector<Lever> all;
  all.push_back(without_optimizer_state(plan, alive.by_category[static_cast<size_t>(Category::Optimizer)]));
  if (plan.training.batch > 1) {
    double updates = update_us(plan);
    all.push_back({alive.function->transient_bytes / 2, (plan.predicted_step_us - updates) / 2 + updates, "half the batch, about"});
  }
  std::stable_sort(all.begin(), all.end(), [](const Lever& a, const Lever& b) { return a.bytes > b.bytes; });
  std::string text;
  for (const Lever& lever : all)
    if (lever.bytes > 0)
      text += (text.empty() ? "; would free: " : ", ") + lever.what + " " + format_bytes(lever.bytes) + " (" + milliseconds(lever.step_us) + ")";
  return text.empty() ? text : text + "; a step of this plan takes " + milliseconds(plan.predicted_step_us);
}

}  // namespace

bool is_within_budget(const Plan& plan) { return plan.promised_bytes() <= plan.arenas.front().budget_bytes; }

Status over_budget(const Plan& smallest) {
  const Arena& arena = smallest.arenas.front();
  Alive alive = alive_at_peak(smallest);
  const Instruction& at = alive.function->instructions[static_cast<size_t>(alive.function->peak_instruction)];
  return budget_error("needs " + format_bytes(round_up_readable(smallest.promised_bytes())) + " (" + std::to_string(smallest.promised_bytes()) + " bytes: arena " + format_bytes(arena.bytes) + ", reserves " +
                      format_bytes(smallest.device.reserve_bytes()) + "), the budget is " + format_bytes(arena.budget_bytes) +
                      "; at the peak (" + smallest.slots[static_cast<size_t>(at.results[0])].name + " in " + alive.function->name +
                      "): " + list(alive) + levers(smallest, alive));
}

}  // namespace plimsoll
