#pragma once

// A small plan built by hand, with one example of everything that the checker knows: persistent and transient slots, an
// input, a view, an in-place result, a workspace, an update in place, an output and a gradient. Every f32[64]
// has 256 bytes.
//
//   bytes      0        256      512      768      1024     1280
//   start      w        table    -        x
//   0 h = mul(x, w)                       x        h
//   1 a = exp(x)                          a        h
//   2 b = add(h, a)                       a        h        b
//   3 n = neg(b as f32[8,8])              n        (work)   b
//   4 w.next = sub(w, b)                  n                 b
//   5 loss = mul(n, n)                    n        loss

#include "ir/plan/plan.h"

namespace plimsoll::testing {

enum : SlotId { w, table, x, h, a, b, b_square, n, work, w_next, loss, slot_count };

inline Slot make_slot(const char* name, int64_t offset, int32_t function, int32_t first, int32_t last,
                      Category category, llvm::ArrayRef<int64_t> shape = {64}) {
  Slot slot;
  slot.name = name;
  slot.type = Type(DType::F32, shape);
  slot.bytes = slot.type.bytes();
  slot.offset = offset;
  slot.function = function;
  slot.first = first;
  slot.last = last;
  slot.category = category;
  return slot;
}

inline Instruction make_instruction(const char* op, std::vector<SlotId> operands, SlotId result, Phase phase) {
  Instruction instruction;
  instruction.op = op;
  instruction.operands = std::move(operands);
  instruction.results = {result};
  instruction.kernel = "plain";
  instruction.phase = phase;
  instruction.predicted_us = 2;
  instruction.flops = 64;
  instruction.bytes_moved = 768;
  return instruction;
}

inline void add_sample_slots(Plan& plan) {
  plan.slots = {make_slot("w", 0, -1, 0, 0, Category::Parameters),
                make_slot("table", 256, -1, 0, 0, Category::Constants),
                make_slot("x", 768, 0, 0, 1, Category::Input),
                make_slot("h", 1024, 0, 0, 2, Category::Temporary),
                make_slot("a", 768, 0, 1, 2, Category::Temporary),
                make_slot("b", 1280, 0, 2, 4, Category::Saved),
                make_slot("b.square", 1280, 0, 2, 4, Category::Saved, {8, 8}),
                make_slot("n", 768, 0, 3, 5, Category::Temporary, {8, 8}),
                make_slot("n.workspace", 1024, 0, 3, 3, Category::Workspace),
                make_slot("w.next", 0, 0, 4, 5, Category::Parameters),
                make_slot("loss", 1024, 0, 5, 5, Category::Temporary, {8, 8})};
  plan.slots[a].in_place_of = x;
  plan.slots[b_square].view_of = b;
  plan.slots[w_next].in_place_of = w;
  plan.slots[b].reason = "saved for %w.next (sub)";
  plan.slots[b].origin = 0;
}

inline void add_sample_function(Plan& plan) {
  PlanFunction& step = plan.functions.emplace_back();
  step.name = "train_step";
  step.instructions = {
      make_instruction("mul", {x, w}, h, Phase::Forward),     make_instruction("exp", {x}, a, Phase::Forward),
      make_instruction("add", {h, a}, b, Phase::Forward),     make_instruction("neg", {b_square}, n, Phase::Backward),
      make_instruction("sub", {w, b}, w_next, Phase::Update), make_instruction("mul", {n, n}, loss, Phase::Update)};
  step.instructions[3].workspace = work;
  step.instructions[2].origin = 0;
  step.inputs = {{"x", x}};
  step.outputs = {{"loss", loss}};
  step.updates = {{w, w_next}};
  step.transient_bytes = 1024;
  step.peak_live_bytes = 1280;
  step.peak_instruction = 2;
}

inline Plan sample_plan() {
  Plan plan;
  plan.model = "sample.onnx";
  plan.device.name = "toy";
  plan.device.title = "a device for tests";
  plan.device.backend = "cpu";
  plan.device.memory_bytes = 1 << 20;
  plan.device.reserves = {{"program", 4096}};
  plan.device.matmul_tflops = {{DType::F32, 0.5}};
  plan.device.launch_us = 1;
  plan.training.loss = "loss";
  plan.training.optimizer = "sgd";
  plan.training.hyperparameters = {{"lr", 0.1}};
  plan.training.precision = "exported";
  plan.dims = {{"batch", 8}};
  plan.arenas = {{MemorySpace::Device, 1536, 512, 1280, 8192}};
  plan.origins = {{"/block/Add", "Add", "block", "model.py:7: return h + a"}};
  plan.decisions = {{"lay-out", "train_step", "exact", "1 KiB for 7 buffers"}};
  plan.predicted_step_us = 12;
  add_sample_slots(plan);
  add_sample_function(plan);
  plan.states = {{w, StateRole::Parameter, true, {StateInit::Kind::Weights, 0, "w"}}};
  plan.constants = {{table, std::make_shared<const Tensor>(Type(DType::F32, {64}))}};
  plan.gradients = {{"w", 0, 2, b}};
  return plan;
}

// The same with pages of half a slot, of which a window shows two the other way round. They are b's.
inline Plan sample_plan_with_window() {
  Plan plan = sample_plan();
  plan.device.alignment_bytes = 128;
  plan.arenas[0].page_bytes = 128;
  plan.arenas[0].windows = {{windows_begin, {7, 6}}};
  plan.slots[b].offset = plan.slots[b_square].offset = windows_begin;
  return plan;
}

}  // namespace plimsoll::testing
