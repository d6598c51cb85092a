#pragma once

// Sums up a plan: bytes by category at every instruction, and time by phase. The report, the JSON and the comparison of
// plans show these numbers.

#include "ir/plan/plan.h"

#include <array>

namespace plimsoll {

// Live bytes by category. Sizes are rounded up to the device's alignment, so that they add up to the plan's peak.
struct CategoryBytes {
  std::array<int64_t, category_count> bytes{};

  int64_t& operator[](Category category) { return bytes[static_cast<size_t>(category)]; }
  int64_t operator[](Category category) const { return bytes[static_cast<size_t>(category)]; }
  int64_t total() const;
};

// One memory space over the whole plan.
struct SpaceSummary {
  MemorySpace space = MemorySpace::Device;
  std::vector<std::vector<CategoryBytes>> live;  // by function, by instruction; persistent slots included
  int32_t peak_function = 0, peak_instruction = 0;
  CategoryBytes at_peak;
  CategoryBytes largest;     // the maximum of each category over the plan
  double packing_waste = 0;  // arena bytes over the peak of live bytes, minus one
};

struct TimeSummary {
  double step_us = 0;
  double roofline_us = 0;                   // compute time if every kernel reached the device's ceilings
  double by_phase_us[3] = {};               // compute time of a whole step with all its micro-batches
  double recompute_us = 0;                  // the share of that for rematerialised instructions
  double to_host_us = 0, to_device_us = 0;  // time of copies, which run beside computing
  double ranks_us = 0;                      // time of collectives and transfers, beside computing or not
  double exposed_us = 0;                    // the share of it in which computing waits for them
  double stalled_us = 0;                    // time in which computing waits for copies and collectives
  double awaited_us = 0;                    // time in which a stage waits for others, to the end of the slowest
  // Of matmuls, convolutions and attention, forward and backward, each once: the model FLOPs of Chowdhery et al. 2022.
  double model_flops = 0;
  double model_at_peak_us = 0;  // time that these take at the rates of the device's data sheet
};

// Collectives of one kind along one axis of the mesh, in a whole step.
struct CollectiveSummary {
  std::string op, axis;
  int64_t count = 0;
  int64_t bytes = 0;  // of the wholes that are summed or gathered
  double us = 0;      // alone, without computing beside them
};

// Of the states that are transposes of others.
int64_t bytes_of_stored_transposes(const Plan& plan);

// What the neighbouring ranks on one host promise of its memory together.
struct HostNeed {
  int64_t first_rank = 0, ranks = 0;
  int64_t bytes = 0;
};
// By host, of all stages: what each rank may hold (Plan::host_bytes), the snapshot on the first rank alone.
std::vector<HostNeed> needs_of_hosts(const Plan& plan);
int64_t most_on_a_host(const Plan& plan);

// Does the instruction move bytes between ranks?
bool communicates(const Instruction& instruction);
// Bytes of the whole that a collective sums, gathers or divides.
int64_t collective_bytes(const Plan& plan, const Instruction& instruction);
// Most bytes first.
std::vector<CollectiveSummary> summarize_collectives(const Plan& plan);

SpaceSummary summarize_space(const Plan& plan, MemorySpace space);
TimeSummary summarize_time(const Plan& plan);
// By stage of the pipeline of which `plan` is the first.
std::vector<TimeSummary> summarize_stages(const Plan& plan);
// Time of one step of all stages together, from their instructions.
double predict_step_us(const Plan& plan);

// Model FLOPs utilisation (MFU): the share of the step in which all ranks' devices, at the rates of their data sheet,
// would be through with the model FLOPs.
double model_flops_utilisation(const Plan& plan);

// The minimum times that the device's ceilings allow for an instruction that is no copy between memories.
struct Ceilings {
  double memory_us = 0, compute_us = 0;
  double launch_us = 0;             // beside the longer of the two; 0: the launch before does it, too
  bool is_on_matrix_units = false;  // what is computed

  double roofline_us() const { return std::max(memory_us, compute_us) + launch_us; }
};
Ceilings ceilings_of(const Plan& plan, const Instruction& instruction);
double roofline_us(const Plan& plan, const Instruction& instruction);

// Says whether the plan has a limit: one that was set, or the device's memory. The memory of `cpu` in the device file
// stands for any machine's and is no limit.
bool has_budget(const Plan& plan);

// Returns false for views, and for the next value of a state, which is written over the state.
bool adds_bytes(const Plan& plan, const Slot& slot);

// By slot: the instruction before which its bytes are free again. A result that takes over an operand's bytes has them
// from the instruction that writes it.
std::vector<int32_t> ends_of_bytes(const Plan& plan);

// Says whether the transient or persistent slot occupies its bytes at `instruction` of `function`.
bool is_live_at(const Plan& plan, const Slot& slot, int32_t function, int32_t instruction);

// The slots that add bytes at the peak, largest first.
std::vector<SlotId> slots_at_peak(const Plan& plan, const SpaceSummary& summary);

// The devices of all stages and ranks by title: "NVIDIA H200 141 GB and NVIDIA RTX 4090 24 GB".
std::string devices_of(const Plan& plan);

// "trained on loss with adamw at 0.001, batch 8, precision bf16"
std::string describe_job(const Plan& plan);

// The instruction that holds most by itself: what it reads, writes and works in. No layout of the plan's instructions
// needs less than that, what persists and the reserves.
struct LargestInstruction {
  int32_t function = 0, instruction = 0;
  int64_t bytes = 0;        // of the device, without what persists
  int64_t least_bytes = 0;  // with what persists and the reserves
};
LargestInstruction largest_instruction(const Plan& plan);
// "linear that produces %logits"
std::string describe(const Plan& plan, const Instruction& instruction);

// "instruction 310 of 724, linear that produces %logits"
std::string describe_peak(const Plan& plan, const SpaceSummary& summary);

}  // namespace plimsoll
