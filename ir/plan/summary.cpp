#include "ir/plan/summary.h"

#include "ir/op_def.h"
#include "ir/plan/timeline.h"

#include "ir/support/units.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

#include <algorithm>
#include <cstdio>

namespace plimsoll {
namespace {

int64_t padded_bytes(const Plan& plan, const Slot& slot) {
  int64_t alignment = plan.device.alignment_bytes;
  return (std::max<int64_t>(slot.bytes, 1) + alignment - 1) / alignment * alignment;
}

void add(CategoryBytes& to, const CategoryBytes& from) {
  for (size_t i = 0; i < category_count; ++i) to.bytes[i] += from.bytes[i];
}

// Adds every slot where its life begins, subtracts it behind its end, and sums up.
void mark_lifetimes(const Plan& plan, SpaceSummary& summary) {
  const std::vector<int32_t> ends = ends_of_bytes(plan);
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const Slot& slot = plan.slots[i];
    if (slot.space != summary.space || !adds_bytes(plan, slot)) continue;
    int64_t bytes = padded_bytes(plan, slot);
    if (slot.function < 0) {
      for (auto& live : summary.live)
        if (!live.empty()) live.front()[slot.category] += bytes;
      continue;
    }
    auto& live = summary.live[slot.function];
    live[slot.first][slot.category] += bytes;
    live[static_cast<size_t>(ends[i])][slot.category] -= bytes;
  }
}

// Bytes of the device that the instruction reads, writes and works in, without what persists.
int64_t transient_bytes_of(const Plan& plan, const Instruction& instruction) {
  llvm::SmallVector<SlotId, 8> owners;
  const auto add = [&](SlotId id) {
    if (id < 0) return;
    const Slot& owner = plan.slots[id = plan.storage_of(id)];
    const bool is_transient = owner.function >= 0 && owner.offset >= plan.arenas.front().persistent_bytes;
    if (owner.space == MemorySpace::Device && is_transient && !llvm::is_contained(owners, id)) owners.push_back(id);
  };
  for (SlotId operand : instruction.operands) add(operand);
  for (SlotId result : instruction.results)
    if (plan.slots[result].in_place_of < 0) add(result);
  add(instruction.workspace);
  const auto is_counted_with_whole = [&](SlotId owner) {
    const SlotId whole = plan.slots[owner].part_of;
    return whole >= 0 && llvm::is_contained(owners, whole);
  };
  int64_t bytes = 0;
  for (SlotId owner : owners)
    if (!is_counted_with_whole(owner)) bytes += plan.slots[owner].bytes;
  return bytes;
}

}  // namespace

int64_t CategoryBytes::total() const {
  int64_t sum = 0;
  for (int64_t each : bytes) sum += each;
  return sum;
}

SpaceSummary summarize_space(const Plan& plan, MemorySpace space) {
  SpaceSummary summary;
  summary.space = space;
  for (const PlanFunction& function : plan.functions) summary.live.emplace_back(function.instructions.size() + 1);
  mark_lifetimes(plan, summary);
  int64_t peak = -1;
  for (size_t f = 0; f < summary.live.size(); ++f) {
    auto& live = summary.live[f];
    live.pop_back();
    for (size_t i = 0; i < live.size(); ++i) {
      if (i > 0) add(live[i], live[i - 1]);
      for (size_t c = 0; c < category_count; ++c)
        summary.largest.bytes[c] = std::max(summary.largest.bytes[c], live[i].bytes[c]);
      if (live[i].total() <= peak) continue;
      peak = live[i].total();
      summary.peak_function = static_cast<int32_t>(f);
      summary.peak_instruction = static_cast<int32_t>(i);
      summary.at_peak = live[i];
    }
  }
  for (const Arena& arena : plan.arenas)
    if (arena.space == space && arena.peak_live_bytes > 0)
      summary.packing_waste = static_cast<double>(arena.bytes) / static_cast<double>(arena.peak_live_bytes) - 1;
  return summary;
}

namespace {

// The operands' type where matrix units do the work.
std::optional<DType> matrix_type(const Plan& plan, const Instruction& instruction) {
  const OpDef* op = find_op(instruction.op);
  if (op && op->precision == Precision::Low && !instruction.operands.empty() && instruction.operands.front() >= 0)
    return plan.slots[instruction.operands.front()].type.dtype;
  return std::nullopt;
}

bool is_remat(const Plan& plan, const Instruction& instruction) {
  return !instruction.results.empty() && plan.slots[instruction.results.front()].category == Category::Recompute;
}

}  // namespace

Ceilings ceilings_of(const Plan& plan, const Instruction& instruction) {
  const std::optional<DType> matrix = matrix_type(plan, instruction);
  const bool is_launch = !instruction.joined && instruction.bytes_moved > 0;  // parts in place move nothing
  return {plan.device.roofline_us(0, instruction.bytes_moved, matrix),
          plan.device.roofline_us(instruction.flops, 0, matrix), is_launch ? plan.device.launch_us : 0,
          matrix.has_value()};
}

double roofline_us(const Plan& plan, const Instruction& instruction) {
  return ceilings_of(plan, instruction).roofline_us();
}

namespace {

// Of one function of the plan, its calls in a step.
void add_time(TimeSummary& time, const Plan& plan, size_t function, const Timeline& timeline) {
  const auto calls = static_cast<double>(plan.calls_per_step(function));
  for (const Instruction& instruction : plan.functions[function].instructions) {
    double us = calls * instruction.predicted_us;
    const OpDef* op = find_op(instruction.op);
    if (op && op->engine != Engine::Compute) continue;
    time.roofline_us += calls * roofline_us(plan, instruction);
    time.by_phase_us[static_cast<size_t>(instruction.phase)] += us;
    if (is_remat(plan, instruction)) {
      time.recompute_us += us;
    } else if (const std::optional<DType> matrix = matrix_type(plan, instruction)) {
      const double flops = calls * instruction.flops;
      time.model_flops += flops;
      time.model_at_peak_us += flops / (plan.device.peak_tflops_for(*matrix) * 1e6);
    }
  }
  time.to_host_us += calls * timeline.to_host_us;
  time.to_device_us += calls * timeline.to_device_us;
  time.ranks_us += calls * timeline.ranks_us;
  time.stalled_us += calls * timeline.stalled_us;
  time.exposed_us += calls * timeline.exposed_us;
  time.awaited_us += calls * timeline.awaited_us;
}

double slowest_of(llvm::ArrayRef<Timeline> stages) {
  double us = 0;
  for (const Timeline& stage : stages) us = std::max(us, stage.total_us);
  return us;
}

}  // namespace

TimeSummary summarize_time(const Plan& plan) { return std::move(summarize_stages(plan).front()); }

std::vector<TimeSummary> summarize_stages(const Plan& plan) {
  const llvm::SmallVector<const Plan*, 4> stages = plan.stages();
  std::vector<TimeSummary> times(stages.size());
  for (TimeSummary& time : times) time.step_us = plan.predicted_step_us;
  for (size_t f = 0; f < plan.functions.size(); ++f) {
    std::vector<Timeline> timelines = predict_timelines(plan, f);
    const double slowest_us = slowest_of(timelines);
    for (size_t i = 0; i < stages.size(); ++i) {
      timelines[i].awaited_us += slowest_us - timelines[i].total_us;
      add_time(times[i], *stages[i], f, timelines[i]);
    }
  }
  return times;
}

double predict_step_us(const Plan& plan) {
  double us = 0;
  for (size_t f = 0; f < plan.functions.size(); ++f)
    us += static_cast<double>(plan.calls_per_step(f)) * slowest_of(predict_timelines(plan, f));
  return us;
}

double model_flops_utilisation(const Plan& plan) {
  const std::vector<TimeSummary> stages = summarize_stages(plan);
  double at_peak_us = 0;
  for (const TimeSummary& stage : stages) at_peak_us += stage.model_at_peak_us;
  return at_peak_us / (static_cast<double>(stages.size()) * std::max(plan.predicted_step_us, 1e-9));
}

int64_t bytes_of_stored_transposes(const Plan& plan) {
  int64_t bytes = 0;
  for (const PlanState& state : plan.states)
    if (state.init.kind == StateInit::Kind::TransposeOf)
      bytes += plan.slots[static_cast<size_t>(state.slot)].type.bytes();
  return bytes;
}

std::vector<HostNeed> needs_of_hosts(const Plan& plan) {
  const int64_t ranks = plan.mesh.ranks(), per_stage = plan.mesh.ranks_per_stage();
  const int64_t per_host = plan.host.ranks_per_host > 0 ? plan.host.ranks_per_host : ranks;
  std::vector<int64_t> bytes_of_stage;
  for (const Plan* stage : plan.stages()) bytes_of_stage.push_back(stage->host_bytes() - stage->host.snapshot_bytes);
  std::vector<HostNeed> hosts;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    if (rank % per_host == 0) hosts.push_back({rank});
    const auto stage = std::min(static_cast<size_t>(rank / per_stage), bytes_of_stage.size() - 1);
    ++hosts.back().ranks;
    hosts.back().bytes += bytes_of_stage[stage] + (rank == 0 ? plan.host.snapshot_bytes : 0);
  }
  return hosts;
}

int64_t most_on_a_host(const Plan& plan) {
  int64_t most = 0;
  for (const HostNeed& host : needs_of_hosts(plan)) most = std::max(most, host.bytes);
  return most;
}

bool communicates(const Instruction& instruction) {
  const OpDef* op = find_op(instruction.op);
  return op && op->engine == Engine::Ranks;
}

int64_t collective_bytes(const Plan& plan, const Instruction& instruction) {
  int64_t most = 0;
  for (llvm::ArrayRef<SlotId> slots : {llvm::ArrayRef<SlotId>(instruction.operands), {instruction.results}})
    for (SlotId slot : slots)
      if (slot >= 0) most = std::max(most, plan.slots[static_cast<size_t>(slot)].type.bytes());
  return most;
}

std::vector<CollectiveSummary> summarize_collectives(const Plan& plan) {
  std::vector<CollectiveSummary> sums;
  for (size_t f = 0; f < plan.functions.size(); ++f)
    for (const Instruction& instruction : plan.functions[f].instructions) {
      if (!communicates(instruction)) continue;
      const std::string axis = instruction.attrs.get_string("axis").str();
      auto sum = llvm::find_if(
          sums, [&](const CollectiveSummary& each) { return each.op == instruction.op && each.axis == axis; });
      if (sum == sums.end()) sum = sums.insert(sum, {instruction.op, axis});
      const int64_t calls = plan.calls_per_step(f);
      sum->count += calls;
      sum->bytes += calls * collective_bytes(plan, instruction);
      sum->us += static_cast<double>(calls) * instruction.predicted_us;
    }
  llvm::stable_sort(sums, [](const CollectiveSummary& a, const CollectiveSummary& b) { return a.bytes > b.bytes; });
  return sums;
}

bool adds_bytes(const Plan& plan, const Slot& slot) {
  if (slot.view_of >= 0 || slot.part_of >= 0) return false;
  return slot.function < 0 || slot.offset >= plan.arenas[static_cast<size_t>(slot.space)].persistent_bytes;
}

std::vector<int32_t> ends_of_bytes(const Plan& plan) {
  std::vector<int32_t> ends;
  for (const Slot& slot : plan.slots) ends.push_back(slot.last + 1);
  for (const Slot& slot : plan.slots) {
    if (slot.in_place_of < 0 || !adds_bytes(plan, slot)) continue;
    const auto storage = static_cast<size_t>(plan.storage_of(slot.in_place_of));
    const Slot& operand = plan.slots[storage];
    if (operand.function == slot.function && operand.last == slot.first && adds_bytes(plan, operand))
      ends[storage] = operand.last;
  }
  return ends;
}

bool has_budget(const Plan& plan) {
  if (plan.arenas.empty() || plan.arenas.front().budget_bytes <= 0) return false;
  return plan.device.backend != "cpu" || plan.arenas.front().budget_bytes != plan.device.memory_bytes;
}

bool is_live_at(const Plan& plan, const Slot& slot, int32_t function, int32_t instruction) {
  return slot.function < 0 || (slot.function == function && slot.first <= instruction && instruction <= slot.last);
}

std::vector<SlotId> slots_at_peak(const Plan& plan, const SpaceSummary& summary) {
  std::vector<SlotId> alive;
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const Slot& slot = plan.slots[i];
    if (slot.space == summary.space && adds_bytes(plan, slot) &&
        is_live_at(plan, slot, summary.peak_function, summary.peak_instruction))
      alive.push_back(static_cast<SlotId>(i));
  }
  std::stable_sort(alive.begin(), alive.end(),
                   [&](SlotId a, SlotId b) { return plan.slots[a].bytes > plan.slots[b].bytes; });
  return alive;
}

std::string devices_of(const Plan& plan) {
  std::vector<std::string> titles;
  const auto add = [&](const DeviceDescription& device) {
    if (!llvm::is_contained(titles, device.title)) titles.push_back(device.title);
  };
  for (const RankKind& kind : plan.kinds) add(kind.device);
  for (const Plan* stage : plan.stages())
    if (stage->kinds.empty()) add(stage->device);
  return llvm::join(titles, " and ");
}

std::string describe_job(const Plan& plan) {
  const TrainingSummary& training = plan.training;
  std::string job = "trained on " + training.loss + " with " + training.optimizer;
  for (const auto& [name, value] : training.hyperparameters)
    if (name == "lr") {
      char rate[32];
      std::snprintf(rate, sizeof rate, " at %g", value);
      job += rate;
    }
  if (training.batch > 0) job += ", batch " + std::to_string(training.batch);
  if (training.accumulate > 1) job += " x " + std::to_string(training.accumulate);
  if (training.clip_grad_norm > 0) job += ", clipped";
  if (!training.precision.empty()) job += ", precision " + training.precision;
  if (plan.evaluation.batch > 0) job += ", evaluated in batches of " + std::to_string(plan.evaluation.batch);
  if (plan.mesh.ranks() > 1)
    job += ", on " + std::to_string(plan.mesh.ranks()) + " ranks (" + to_string(plan.mesh) + ")";
  if (!plan.pipeline.schedule.empty())
    job += ", " + plan.pipeline.schedule + " with " + std::to_string(plan.pipeline.micro_batches) + " micro-batches";
  return job;
}

LargestInstruction largest_instruction(const Plan& plan) {
  LargestInstruction largest;
  for (size_t f = 0; f < plan.functions.size(); ++f)
    for (size_t i = 0; i < plan.functions[f].instructions.size(); ++i) {
      const int64_t bytes = transient_bytes_of(plan, plan.functions[f].instructions[i]);
      if (bytes > largest.bytes) largest = {static_cast<int32_t>(f), static_cast<int32_t>(i), bytes};
    }
  largest.least_bytes = largest.bytes + plan.arenas.front().persistent_bytes + plan.device.reserve_bytes();
  return largest;
}

std::string describe(const Plan& plan, const Instruction& instruction) {
  if (instruction.results.empty()) return instruction.op;
  return instruction.op + " that produces %" + plan.slots[instruction.results.front()].name;
}

std::string describe_peak(const Plan& plan, const SpaceSummary& summary) {
  const PlanFunction& function = plan.functions[summary.peak_function];
  std::string where = "instruction " + format_count(summary.peak_instruction + 1) + " of " +
                      format_count(static_cast<int64_t>(function.instructions.size()));
  if (plan.functions.size() > 1) where += " in " + function.name;
  if (function.instructions.empty()) return where;
  return where + ", " + describe(plan, function.instructions[summary.peak_instruction]);
}

}  // namespace plimsoll
