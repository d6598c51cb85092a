#pragma once

// A plan is the compiler's product: plain data that leaves nothing to decide, without weights.
//
// A plan holds functions ("train_step", perhaps "update" and "evaluate") over one set of arenas. The bottom of an
// arena is persistent (states and constants); above it each function lays out its own transient slots,
// so an arena is as large as the persistent part and the largest function together.
//
// Rules that ir/plan/check.h proves for every plan
// - Every instruction reads slots whose bytes still hold what their writer wrote.
// - Results overlap an operand only where the op's record allows it, and then exactly: as the same bytes, or as a part
//   and its run of the whole.
// - After a function the bytes of each state hold its next value; nothing else wrote to persistent bytes, and
//   "evaluate" has no next values.
// - Copies between memories touch nothing that is used while they run.
// - arena bytes + reserves <= budget, on each rank's own device.

#include "ir/engine.h"
#include "ir/graph.h"
#include "ir/index_input.h"
#include "ir/machine/device.h"
#include "ir/mesh.h"
#include "ir/plan/parameter_group.h"
#include "ir/support/windows_begin.h"

namespace plimsoll {

inline constexpr int plan_format_version = 3;

// The use of bytes, in the words of docs/map.md.
enum class Category : uint8_t {
  Parameters,
  Gradients,
  Optimizer,
  Constants,  // folded tensors, counters, buffers of the model
  Saved,      // kept from forward for backward
  Temporary,
  Recompute,
  Offload,
  Workspace,
  Input,
};
inline constexpr int category_count = 10;
llvm::StringRef category_name(Category category);  // "parameters", ...

using SlotId = int32_t;  // index into Plan::slots; -1: none

// Some pages of an arena that a second range of addresses shows side by side, so that a slot which finds no hole that
// is long enough can lie in several.
struct PageWindow {
  int64_t offset = 0;          // of its first byte, at windows_begin or above; a multiple of the page
  std::vector<int64_t> pages;  // in order; page n begins n * page_bytes behind the persistent bytes
};

// A value's place in an arena, or an instruction's workspace.
struct Slot {
  std::string name;
  Type type;  // workspace: u8[bytes]
  MemorySpace space = MemorySpace::Device;
  int64_t offset = 0;  // bytes from the arena's start, aligned; or in one of its windows
  int64_t bytes = 0;
  int32_t function = -1;        // index into Plan::functions; -1: persistent
  int32_t first = 0, last = 0;  // the function's instructions between which the bytes are in use, inclusive
  Category category = Category::Temporary;
  SlotId view_of = -1;      // the slot that is written; this one is its bytes under another shape
  SlotId in_place_of = -1;  // the operand whose bytes this result takes over
  // A slot that has these bytes among its own, and lives at least as long: the whole that the value is, or becomes, a
  // part of.
  SlotId part_of = -1;
  int32_t origin = -1;  // index into Plan::origins
  std::string reason;   // "saved for %h.3 (layer_norm_grad)"
};

struct Instruction {
  std::string op;  // a record of ir/ops
  Attrs attrs;
  std::vector<SlotId> operands;  // -1: absent
  std::vector<SlotId> results;
  SlotId workspace = -1;
  std::string kernel;  // a candidate of the device's kernel table
  Phase phase = Phase::Forward;
  int32_t origin = -1;
  double flops = 0;
  int64_t bytes_moved = 0;  // operands read plus results written
  double predicted_us = 0;
  std::string reason;
  bool joined = false;  // one launch does it and the instruction before it
  // For a copy between memories: the index of the instruction that waits for its end; the number of instructions if the
  // end of the function waits for it. Until then the copy runs beside the instructions after it, its operand keeps its
  // bytes, and nobody reads its result. -1: the copy is waited for at once.
  int32_t done = -1;
};

struct PlanInput {
  std::string name;  // the graph input's name
  SlotId slot = -1;
  // A persistent slot that takes the next batch while a step runs, and is copied to `slot` as the function starts. Only
  // devices with memory of their own have it. -1: none.
  SlotId staging = -1;
  bool whole = false;  // of several ranks: all read the same bytes, and not each its own rows of the batch
};

// How the outputs of "evaluate" for several batches make the result for all of their samples.
enum class OutputUse : uint8_t {
  Mean,  // the mean by the output "weight", or by the number of samples where there is none
  Sum,
  Rows,   // dimension 0 has one entry for each sample
  Whole,  // says nothing about single samples
};
llvm::StringRef use_name(OutputUse use);  // "mean", ...

struct PlanOutput {
  std::string name;
  SlotId slot = -1;  // readable after the last instruction
  OutputUse use = OutputUse::Whole;
};

// The bytes of `state` hold `value` after the function: they share them, or a copy put it there.
struct PlanUpdate {
  SlotId state = -1, value = -1;
};

// Functions are told apart by these names.
inline constexpr llvm::StringLiteral train_step_function = "train_step", update_function = "update",
                                     evaluate_function = "evaluate";

struct PlanFunction {
  std::string name;
  std::vector<Instruction> instructions;
  std::vector<PlanInput> inputs;
  std::vector<PlanOutput> outputs;
  std::vector<PlanUpdate> updates;
  int64_t transient_bytes = 0;   // above the persistent part, device space
  int64_t peak_live_bytes = 0;   // largest sum of live bytes, the persistent part included
  int32_t peak_instruction = 0;  // where that is
};

struct PlanState {
  SlotId slot = -1;
  StateRole role = StateRole::Parameter;
  bool trained = false;
  StateInit init;
  Divisions divisions;         // not empty: it is the rank's own piece
  bool channels_last = false;  // as State's (ir/graph.h)
};

struct PlanConstant {
  SlotId slot = -1;
  TensorRef value;
};

// The gradient of a parameter stands complete in `slot` after `instruction` of `function` (-1: from the start). Dumps
// of gradients read it there.
struct PlanGradient {
  std::string parameter;
  int32_t function = 0;
  int32_t instruction = 0;
  SlotId slot = -1;
};

struct Arena {
  MemorySpace space = MemorySpace::Device;
  int64_t bytes = 0;  // height of the layout
  int64_t persistent_bytes = 0;
  int64_t peak_live_bytes = 0;
  int64_t budget_bytes = 0;
  int64_t page_bytes = 0;           // where there are windows
  std::vector<PageWindow> windows;  // one behind the other
};

// A choice and the numbers that decided it.
struct Decision {
  std::string pass;
  std::string subject;  // a value, a node or "plan"
  std::string choice;
  std::string reason;
};

// The job as it was asked for, which is enough to make its step again, and what its data mean.
struct TrainingSummary {
  std::string loss;                                             // output name
  std::string asked_loss;                                       // empty: nobody said which
  std::string optimizer;                                        // "adamw"
  std::vector<std::pair<std::string, double>> hyperparameters;  // lr, beta1, ...
  std::vector<ParameterGroup> groups;                           // in the order in which they decide
  int64_t accumulate = 1;                                       // calls of train_step per update
  double clip_grad_norm = 0;                                    // 0: off
  int64_t batch = 0;                     // leading dimension of the inputs, 0 when they do not share one
  std::string precision;                 // "exported", "fp32", ...
  std::vector<IndexInput> index_inputs;  // of the whole model
};

// What the function "evaluate" computes of a batch.
struct EvaluationSummary {
  int64_t batch = 0;                 // samples of a call; 0: the plan has no such function
  std::vector<std::string> metrics;  // besides the loss, as asked for: "accuracy", an output's name
  bool of_mean = false;              // with the running means of the weights in the place of the weights
  friend bool operator==(const EvaluationSummary&, const EvaluationSummary&) = default;
};

// The measures that make the job fit. Reports and tables are made from it.
struct FitSummary {
  int64_t chunks = 1;          // of the batch, for all that follows `chunks_from`
  std::string chunks_from;     // a value of the model; empty: the batch is whole
  int64_t rematerialised = 0;  // instructions that run a second time
  friend bool operator==(const FitSummary&, const FitSummary&) = default;
};

// How the stages of a pipeline share a batch.
struct PipelineSummary {
  int64_t micro_batches = 1;  // equal chunks of a rank's batch that go through the stages one after the other
  std::string schedule;       // "1f1b"; empty: there is one stage
  friend bool operator==(const PipelineSummary&, const PipelineSummary&) = default;
};

// A mesh that was compiled for the choice of one, and what came of it.
struct TriedMesh {
  Mesh mesh;
  int32_t zero = 0;
  PipelineSummary pipeline;
  bool fits = false;
  int64_t bytes = 0;  // promised, of the rank that needs most
  double step_us = 0;
  friend bool operator==(const TriedMesh&, const TriedMesh&) = default;
};

// How the plan's mesh was chosen. A candidate is a mesh with its ZeRO stage, micro-batches and schedule.
struct MeshSearchSummary {
  int64_t cards = 0;                // that the job may have; 0: the mesh was not searched for
  int64_t considered = 0;           // candidates
  int64_t over_memory = 0;          // of them, those that surely cannot be brought within the budget
  int64_t over_time = 0;            // those whose least time is not below the plan's
  double bound_us = 0;              // no candidate takes less
  std::vector<TriedMesh> compiled;  // the plan first, then those that fit, fastest first
  friend bool operator==(const MeshSearchSummary&, const MeshSearchSummary&) = default;
};

// The memory that the ranks of a host may hold while they train.
struct HostSummary {
  int64_t budget_bytes = 0;  // of each host, for all its ranks (see Plan::host_bytes) together; 0: not limited
  int64_t cache_bytes = 0;   // what a rank may keep of decoded samples
  // Held back for the copy of all states that a run with checkpoints takes, of the first stage, whose first rank does.
  int64_t snapshot_bytes = 0;
  int64_t memory_bytes = 0;    // that each host has, by the cluster's description; 0: not known
  int64_t ranks_per_host = 0;  // ranks fill hosts one after the other; 0: all are on one
  friend bool operator==(const HostSummary&, const HostSummary&) = default;
};

// Batches that a run reads ahead of its steps, the one that it hands out included.
inline constexpr int64_t batches_read_ahead = 4;

// Bytes of the host that loading a function's inputs takes: batches read ahead, and for a device with memory of its own
// two more that are pinned, to be copied from.
int64_t loading_bytes(int64_t input_bytes, llvm::StringRef backend);

// One kind of device among ranks that run one plan.
struct RankKind {
  DeviceDescription device;
  int64_t budget_bytes = 0;    // of each of its ranks, at least
  std::vector<int64_t> ranks;  // in order
};

struct Plan {
  std::string model;  // file name without folders
  DeviceDescription device;
  TrainingSummary training;
  EvaluationSummary evaluation;
  FitSummary fit;
  Mesh mesh;  // every rank of a stage runs one plan, on its rows of the batch
  // Where these ranks have unlike devices: all kinds of them, of which `device` is what all can do. Empty: each rank
  // has a `device`.
  std::vector<RankKind> kinds;
  MeshSearchSummary mesh_search;
  PipelineSummary pipeline;
  HostSummary host;
  int32_t stage = 0;                                  // which stage of the pipeline it is the plan of
  std::vector<Plan> later_stages;                     // in the plan of stage 0: those of the other stages, in order
  std::vector<std::pair<std::string, int64_t>> dims;  // --dim bindings
  std::vector<Arena> arenas;                          // Device first, then Host when used
  std::vector<Slot> slots;
  std::vector<PlanFunction> functions;
  std::vector<PlanState> states;
  std::vector<PlanConstant> constants;
  std::vector<PlanGradient> gradients;
  std::vector<Origin> origins;
  std::vector<Decision> decisions;
  double predicted_step_us = 0;  // of all stages together

  int64_t promised_bytes() const;  // device arena + reserves
  int64_t loading_bytes() const;   // of the host, for the inputs of all functions
  // Of the host, by a rank: the pinned arena, loading, the cache and what is held back for a snapshot. Beside them a
  // run holds the program, and its snapshot where no room was held back.
  int64_t host_bytes() const;
  // Index of the function of that name; none where the plan has no such function.
  std::optional<size_t> find_function(llvm::StringRef name) const;
  // A step is one update: the first function runs for every micro-batch, "update" once and "evaluate" not at all.
  int64_t calls_per_step(size_t function) const;
  // Of a state, or a rank's piece of it, with dimensions in the model's order.
  Type model_type(const PlanState& state) const;
  // Follows view_of to the slot that owns the bytes' content.
  SlotId storage_of(SlotId slot) const;
  // What a rank of this plan or of a later stage runs on.
  const DeviceDescription& device_of(int64_t rank) const;
  // Do all ranks of all stages have one kind of device?
  bool has_one_device() const;
  // This plan and those of the later stages.
  llvm::SmallVector<const Plan*, 4> stages() const;
};

}  // namespace plimsoll
