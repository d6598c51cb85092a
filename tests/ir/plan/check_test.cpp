#include "ir/plan/check.h"

#include "tests/ir/plan/sample_plan.h"

#include <doctest/doctest.h>
#include <ctime>

// Every fault is a mistake that a planner could make; the checker must name each.

namespace plimsoll {
namespace {

using namespace testing;

struct Planted {
  const char* what;
  void (*plant)(Plan& plan);
  const char* message;  // a substring of the message
};

PlanFunction& step(Plan& plan) { return plan.functions[0]; }
void move(Plan& plan, SlotId slot, int64_t offset) { plan.slots[slot].offset = offset; }

const Planted sharing[] = {
    {"two live slots overlap", [](Plan& p) { move(p, b, 1024), move(p, b_square, 1024); },
     "instruction 2 (add): %b [1024, 1280) overlaps operand 0, %h [1024, 1280), without saying so"},
    {"a write over a bystander that is alive", [](Plan& p) { move(p, a, 1024), p.slots[a].in_place_of = -1; },
     "instruction 1 (exp): result %a [1024, 1280) is written over %h [1024, 1280), which lives to "
     "instruction 2"},
    {"a workspace over an operand", [](Plan& p) { move(p, work, 1280); },
     "its workspace %n.workspace [1280, 1536) overlaps operand %b.square"},
    {"a result over the workspace", [](Plan& p) { move(p, work, 768), p.slots[a].last = 2; },
     "result %n [768, 1024) is written over %n.workspace [768, 1024), which lives to instruction 3"},
    {"a lifetime that ends too early", [](Plan& p) { p.slots[h].last = 1; },
     "instruction 2 (add): reads %h [1024, 1280), which lives from instruction 0 to 1"},
    {"a lifetime that begins too late", [](Plan& p) { p.slots[b].first = p.slots[b_square].first = 3; },
     "result %b [1280, 1536), which lives from instruction 3 to 4"},
    {"an operand nobody wrote", [](Plan& p) { step(p).instructions[0].operands[0] = a, p.slots[a].first = 0; },
     "reads %a [768, 1024), which was never written"},
    {"read before written",
     [](Plan& p) {
       std::swap(step(p).instructions[1], step(p).instructions[2]);
       p.slots[b].first = p.slots[b_square].first = 1;
     },
     "reads %a [768, 1024), which was never written"},
    {"written twice",
     [](Plan& p) {
       step(p).instructions[3].workspace = -1;
       step(p).instructions[4].results[0] = h, p.slots[h].last = 5;
     },
     "was already written at instruction 0"},
    {"an overlap the op does not allow",
     [](Plan& p) { move(p, loss, 768), p.slots[loss].in_place_of = n, step(p).instructions[5].op = "matmul"; },
     "which matmul does not allow"},
    {"an overlap that is not exact",
     [](Plan& p) {
       p.device.alignment_bytes = 128;
       move(p, b, 1152), move(p, b_square, 1152), p.slots[b].in_place_of = h;
     },
     "but not exactly"},
    {"the wrong operand's bytes", [](Plan& p) { p.slots[a].in_place_of = w; }, "without saying so"},
    {"in place of nothing", [](Plan& p) { p.slots[h].in_place_of = w; },
     "claims the bytes of %w [0, 256), which is no operand there"},
    {"a view that lies elsewhere", [](Plan& p) { move(p, b_square, 1024); },
     "is a view of %b [1280, 1536), but lies elsewhere"},
};

// Reads the old w after w.next has taken its bytes.
void read_a_state_too_late(Plan& p) {
  p.slots.push_back(make_slot("late", 1280, 0, 6, 6, Category::Temporary));
  step(p).instructions.push_back(make_instruction("neg", {w}, slot_count, Phase::Update));
  p.slots[loss].last = p.slots[w_next].last = 6;
}

const Planted persistence[] = {
    {"an update that does not land",
     [](Plan& p) {
       move(p, w_next, 1024), p.slots[w_next].in_place_of = -1;
       step(p).instructions.pop_back(), step(p).outputs.clear();
       p.slots[n].last = p.slots[loss].last = p.slots[loss].first = p.slots[w_next].last = 4;
     },
     "the next value of %w [0, 256) is left in %w.next [1024, 1280)"},
    {"an update that is forgotten", [](Plan& p) { step(p).updates.clear(); },
     "%w.next [0, 256) lies in the persistent part"},
    {"an update of what is no state",
     [](Plan& p) {
       step(p).updates.push_back({h, b});
     },
     "updates %h [1024, 1280), which is no state"},
    {"two updates of one state",
     [](Plan& p) {
       step(p).updates.push_back({w, b});
     },
     "is updated twice"},
    {"scratch over a state", [](Plan& p) { move(p, loss, 0); },
     "%loss [0, 256) lies in the persistent part, which ends at 512"},
    {"a state read after it changed", read_a_state_too_late,
     "reads %w [0, 256), but %w.next [0, 256) was written over it at instruction 4"},
    {"a write straight to a constant", [](Plan& p) { step(p).instructions[0].results[0] = table; },
     "result %table [256, 512) is persistent; only an update's value may be written there"},
    {"two states in one place", [](Plan& p) { move(p, table, 0); }, "and both are persistent"},
    {"a state outside the persistent part", [](Plan& p) { move(p, table, 512); }, "lies outside the persistent part"},
    {"a persistent slot nothing fills", [](Plan& p) { p.constants.clear(); },
     "neither state, constant nor input staging"},
    {"an output that is gone", [](Plan& p) { step(p).outputs[0].slot = h; },
     "at its end: output loss is in %h [1024, 1280), which lives from instruction 0 to 2"},
    {"a gradient that is gone", [](Plan& p) { p.gradients[0].instruction = 5; },
     "the gradient of w is in %b [1280, 1536), which lives from"},
};

const Planted sums[] = {
    {"misaligned", [](Plan& p) { move(p, h, 1040); }, "does not start at a multiple of 256"},
    {"outside the arena", [](Plan& p) { move(p, b, 1536); }, "ends at byte 1792, the device arena has 1536"},
    {"outside the function's part", [](Plan& p) { step(p).transient_bytes = 768; },
     "ends outside the 768 transient bytes"},
    {"over the budget", [](Plan& p) { p.arenas[0].budget_bytes = 5631; },
     "device arena and reserves need 5632 bytes, the budget is 5631"},
    {"a reserve that was left out", [](Plan& p) { p.device.reserves[0].bytes = 8000; },
     "need 9536 bytes, the budget is 8192"},
    {"a peak that is too low", [](Plan& p) { step(p).peak_live_bytes = 1024; },
     "claims a peak of 1024 live bytes, it is 1280"},
    {"a peak in the wrong place", [](Plan& p) { step(p).peak_instruction = 5; }, "its peak is not at instruction 5"},
    {"an arena that hides the peak", [](Plan& p) { p.arenas[0].peak_live_bytes = 512; }, "claims a peak of 512"},
    {"a wrong type", [](Plan& p) { p.slots[n].type = Type(DType::F32, {64}); }, "neg gives f32[8,8]"},
    {"a wrong operand count",
     [](Plan& p) {
       step(p).instructions[1].operands = {x, x};
     },
     "takes 1 operands, got 2"},
    {"an op that is none", [](Plan& p) { step(p).instructions[1].op = "expp"; }, "there is no such op"},
    {"an index out of range", [](Plan& p) { step(p).instructions[1].operands = {99}; },
     "refers to something that does not exist"},
    {"a view of itself", [](Plan& p) { p.slots[b].view_of = b_square; }, "a view of itself"},
    {"fewer bytes than the type", [](Plan& p) { p.slots[h].bytes = 128; }, "128 bytes for f32[64], which has 256"},
};

// The sample with a state on the host. It is reloaded in parallel to instruction 2, and its next value is copied back
// in parallel to the instructions after it.
//
//   bytes      0        256      512      768      1024     1280     1536     host 0
//   start      w        table    -        x                                   m
//   0 h = mul(x, w)                       x        h
//   1 m.fetch = to_device(m)              x        h                 m.fetch  m      waited for before 3
//   2 a = exp(x)                          a        h                 m.fetch
//   3 b = add(h, a)                       a        h        b        m.fetch
//   4 n = neg(b as f32[8,8])              n        (work)   b        m.fetch
//   5 m.next = add(b, m.fetch)            n                 b        m.next
//   6 m.host = to_host(m.next)            n                 b        m.next   m.host waited for at the end
//   7 w.next = sub(w, b)                  n                 b        m.next
//   8 loss = mul(n, n)                    n        loss              m.next
enum : SlotId { m = slot_count, m_fetch, m_next, m_host };

Plan plan_with_host() {
  Plan plan = sample_plan();
  PlanFunction& function = step(plan);
  auto later = [](int32_t at) { return at + (at >= 1) + 2 * (at >= 4); };
  for (Slot& slot : plan.slots)
    if (slot.function >= 0) slot.first = later(slot.first), slot.last = later(slot.last);
  plan.slots.push_back(make_slot("m", 0, -1, 0, 0, Category::Optimizer));
  plan.slots.push_back(make_slot("m.fetch", 1536, 0, 1, 5, Category::Offload));
  plan.slots.push_back(make_slot("m.next", 1536, 0, 5, 8, Category::Optimizer));
  plan.slots.push_back(make_slot("m.host", 0, 0, 6, 8, Category::Optimizer));
  plan.slots[m].space = plan.slots[m_host].space = MemorySpace::Host;
  plan.slots[m_next].in_place_of = m_fetch;
  Instruction fetch = make_instruction("to_device", {m}, m_fetch, Phase::Update),
              store = make_instruction("to_host", {m_next}, m_host, Phase::Update);
  fetch.done = 3, store.done = 9;
  auto& instructions = function.instructions;
  instructions.insert(instructions.begin() + 1, fetch);
  instructions.insert(instructions.begin() + 5, {make_instruction("add", {b, m_fetch}, m_next, Phase::Update), store});
  function.updates.push_back({m, m_host});
  function.transient_bytes = 1280;
  function.peak_live_bytes = 1536;
  function.peak_instruction = 3;
  plan.gradients[0].instruction = 3;
  plan.arenas = {{MemorySpace::Device, 1792, 512, 1536, 8192}, {MemorySpace::Host, 256, 256, 256, 4096}};
  plan.states.push_back({m, StateRole::Optimizer, false, {StateInit::Kind::Fill, 0, ""}});
  return plan;
}

const Planted copies[] = {
    {"a compute op that reads the host", [](Plan& p) { step(p).instructions[5].operands[1] = m; },
     "instruction 5 (add): reads %m [0, 256) in host memory"},
    {"a copy to the device that reads the device", [](Plan& p) { step(p).instructions[1].operands[0] = w; },
     "reads %w [0, 256) in device memory"},
    {"a copy to the host that writes to the device", [](Plan& p) { p.slots[m_host].space = MemorySpace::Device; },
     "writes %m.host [0, 256) in device memory"},
    {"waited for, and no copy", [](Plan& p) { step(p).instructions[2].done = 4; },
     "instruction 2 (exp): is waited for later, and computes"},
    {"a result that is read before it is there",
     [](Plan& p) { step(p).instructions[1].done = 6, p.slots[m_fetch].last = 5; },
     "instruction 5 (add): reads %m.fetch [1536, 1792), whose copy is waited for before instruction 6"},
    {"a source that dies on the way", [](Plan& p) { p.slots[m_next].last = 6; },
     "instruction 6 (to_host): runs until instruction 9, but %m.next [1536, 1792) lives to instruction 6"},
    {"a result that dies on the way", [](Plan& p) { step(p).instructions[1].done = 8; },
     "runs until instruction 8, but %m.fetch [1536, 1792) lives to instruction 5"},
    {"a source that is overwritten on the way", [](Plan& p) { move(p, loss, 1536); },
     "result %loss [1536, 1792) is written over %m.next [1536, 1792), which lives to instruction 8 and is being "
     "copied"},
    {"a state that is overwritten while it is fetched",
     [](Plan& p) {
       step(p).instructions[1].done = 8, p.slots[m_fetch].last = 7;
       step(p).instructions[5].operands[1] = b, p.slots[m_next].in_place_of = -1, move(p, m_next, 1792);
       step(p).transient_bytes = 1536, p.arenas[0].bytes = 2048;
     },
     "instruction 6 (to_host): result %m.host [0, 256) is written over %m [0, 256), which is persistent and is being "
     "copied"},
    {"an update that stays on the device", [](Plan& p) { step(p).updates.back().value = m_next; },
     "%m.host [0, 256) lies in the persistent part"},
};

// The same with a state of twice the size, whose next value comes in two pieces: the first as above, the second is
// fetched and stored as it is while the first is being stored.
//
//   bytes      1536     1792              host 0   256
//   5 m.next = add(b, m.fetch)            m.next            m        m
//   6 m.host = to_host(m.next)            m.next            m.host   m     waited for at the end
//   7 rest = to_device(m)                 m.next   rest     m.host   m
//   8 rest.host = to_host(rest)           m.next   rest     m.host   rest.host
enum : SlotId { rest = m_host + 1, rest_host };

Plan plan_in_pieces() {
  Plan plan = plan_with_host();
  PlanFunction& function = step(plan);
  for (Slot& slot : plan.slots)
    if (slot.function >= 0) slot.first += 2 * (slot.first >= 7), slot.last += 2 * (slot.last >= 7);
  plan.slots[m] = make_slot("m", 0, -1, 0, 0, Category::Optimizer, {128});
  plan.slots.push_back(make_slot("rest", 1792, 0, 7, 8, Category::Offload));
  plan.slots.push_back(make_slot("rest.host", 256, 0, 8, 10, Category::Optimizer));
  plan.slots[m].space = plan.slots[rest_host].space = MemorySpace::Host;
  auto& instructions = function.instructions;
  instructions[1].attrs = {{"begin", 0}, {"elements", 64}};
  instructions[6].attrs = {{"begin", 0}};
  instructions[6].done = 11;
  Instruction fetch = make_instruction("to_device", {m}, rest, Phase::Update),
              store = make_instruction("to_host", {rest}, rest_host, Phase::Update);
  fetch.attrs = {{"begin", 64}, {"elements", 64}}, store.attrs = {{"begin", 64}};
  instructions.insert(instructions.begin() + 7, {fetch, store});
  function.updates.push_back({m, rest_host});
  function.transient_bytes = 1536;
  plan.arenas = {{MemorySpace::Device, 2048, 512, 1536, 8192}, {MemorySpace::Host, 768, 768, 512, 4096}};
  return plan;
}

const Planted pieces[] = {
    {"a part that no piece writes", [](Plan& p) { p.slots[m].type.shape = {192}, p.slots[m].bytes = 768; },
     "of the next value of %m [0, 768) there are 512 bytes"},
    {"two pieces in one place", [](Plan& p) { p.slots[rest_host].offset = 0; },
     "result %rest.host [0, 256) is written over %m.host [0, 256)"},
    {"a piece beside its state", [](Plan& p) { p.slots[rest_host].offset = 512; },
     "the next value of %m [0, 512) is left in %rest.host [512, 768)"},
    {"more pieces than the state has room for",
     [](Plan& p) {
       step(p).updates.push_back({m, rest_host});
     },
     "%m [0, 512) is updated twice"},
    {"a part that is read behind its next value",
     [](Plan& p) { step(p).instructions[7].attrs.set("begin", int64_t{0}); },
     "instruction 7 (to_device): reads %m [0, 512), but %m.host [0, 256) was written over it at instruction 6"},
    {"a part that is not there", [](Plan& p) { step(p).instructions[7].attrs.set("begin", int64_t{65}); },
     "64 elements from 65 on of f32[128]"},
    {"a part that is overwritten while it is fetched",
     [](Plan& p) {
       step(p).instructions[7].done = 10, p.slots[rest].last = 9;
       step(p).instructions[8].operands[0] = m_next;
     },
     "result %rest.host [256, 512) is written over %m [0, 512), which is persistent and is being copied"},
};

// A split and a concatenation that copy nothing.
//
//   bytes                0     256   512   768   1024 to 1536
//   start                x
//   0 p, q = split(x)    p     q
//   1 e = exp(p)         p     q     e
//   2 f = exp(q)               q     e     f
//   3 y = concat(e, f)               y
//   4 z = neg(y)                     y           z
//   5 g = exp(e)               g     e           z
namespace parts {
enum : SlotId { x, p, q, e, f, y, z, g };
}

Plan plan_of_parts() {
  using namespace parts;
  Plan plan = sample_plan();
  plan.states.clear(), plan.constants.clear(), plan.gradients.clear(), plan.functions.clear();
  plan.slots = {make_slot("x", 0, 0, 0, 2, Category::Input, {128}),
                make_slot("p", 0, 0, 0, 1, Category::Temporary),
                make_slot("q", 256, 0, 0, 2, Category::Temporary),
                make_slot("e", 512, 0, 1, 5, Category::Temporary),
                make_slot("f", 768, 0, 2, 3, Category::Temporary),
                make_slot("y", 512, 0, 1, 5, Category::Temporary, {128}),
                make_slot("z", 1024, 0, 4, 5, Category::Temporary, {128}),
                make_slot("g", 256, 0, 5, 5, Category::Temporary)};
  plan.slots[p].part_of = plan.slots[q].part_of = x;
  plan.slots[e].part_of = plan.slots[f].part_of = y;
  PlanFunction& function = plan.functions.emplace_back();
  function.name = "train_step";
  function.instructions = {
      make_instruction("split", {x}, p, Phase::Forward), make_instruction("exp", {p}, e, Phase::Forward),
      make_instruction("exp", {q}, f, Phase::Forward),   make_instruction("concat", {e, f}, y, Phase::Forward),
      make_instruction("neg", {y}, z, Phase::Forward),   make_instruction("exp", {e}, g, Phase::Forward)};
  function.instructions[0].results.push_back(q);
  function.instructions[0].attrs = {{"axis", 0}, {"sizes", Ints{64, 64}}};
  function.instructions[3].attrs = {{"axis", 0}};
  function.inputs = {{"x", x}};
  function.outputs = {{"z", z}, {"g", g}};
  function.transient_bytes = 1536;
  function.peak_live_bytes = 1280;
  function.peak_instruction = 5;
  plan.arenas = {{MemorySpace::Device, 1536, 0, 1280, 8192}};
  return plan;
}

// z is the whole x again, after a value was written over its second half.
void read_a_whole_too_late(Plan& plan) {
  plan.slots[parts::x].last = 4;
  move(plan, parts::f, 256), plan.slots[parts::f].part_of = parts::x, plan.slots[parts::f].in_place_of = parts::q;
  step(plan).instructions[4].operands[0] = parts::x;
}

const Planted of_parts[] = {
    {"a result of a split beside its run", [](Plan& p) { move(p, parts::p, 256), move(p, parts::q, 0); },
     "instruction 0 (split): %p [256, 512) overlaps operand 0, %x [0, 512), which split does not allow"},
    {"an operand of a concatenation beside its run", [](Plan& p) { move(p, parts::e, 768), move(p, parts::f, 512); },
     "instruction 3 (concat): %y [512, 1024) overlaps operand 0, %e [768, 1024), which concat does not allow"},
    {"a run that does not say so", [](Plan& p) { p.slots[parts::p].part_of = -1; },
     "instruction 0 (split): %p [0, 256) overlaps operand 0, %x [0, 512), which split does not allow"},
    {"a part of something else", [](Plan& p) { p.slots[parts::p].part_of = parts::y; },
     "%p [0, 256) is a part of %y [512, 1024), but lies elsewhere"},
    {"a part that lives before its whole", [](Plan& p) { p.slots[parts::y].first = 2; },
     "%e [512, 768) is a part of %y [512, 1024), but lives from instruction 1 to 5, and that from 2 to 5"},
    {"a part that outlives its whole", [](Plan& p) { p.slots[parts::x].last = 1; },
     "%q [256, 512) is a part of %x [0, 512), but lives from instruction 0 to 2, and that from 0 to 1"},
    {"a part that is a view", [](Plan& p) { p.slots[parts::e].view_of = parts::y; }, "and one of them is a view"},
    {"a part of itself", [](Plan& p) { p.slots[parts::y].part_of = parts::e; }, "a part of itself"},
    {"a part over another one", [](Plan& p) { move(p, parts::f, 512); },
     "instruction 2 (exp): result %f [512, 768) is written over %e [512, 768), which lives to instruction 5"},
    {"a whole that is read when a part was written over", read_a_whole_too_late,
     "instruction 4 (neg): reads %x [0, 512), but %f [256, 512) was written over it at instruction 2"},
    {"a part that is read when its whole was written over",
     [](Plan& p) { move(p, parts::z, 512), p.slots[parts::z].in_place_of = parts::y, p.slots[parts::y].last = 5; },
     "instruction 4 (neg): result %z [512, 1024) is written over %e [512, 768), which lives to instruction 5"},
    {"a value over half of a whole", [](Plan& p) { move(p, parts::z, 768), p.slots[parts::y].last = 5; },
     "instruction 4 (neg): %z [768, 1280) overlaps operand 0, %y [512, 1024), but not exactly"},
    {"a peak that counts parts twice",
     [](Plan& p) { step(p).peak_live_bytes = 1536, p.arenas[0].peak_live_bytes = 1536; },
     "claims a peak of 1536 live bytes, it is 1280"},
};

std::vector<int64_t>& pages(Plan& plan) { return plan.arenas[0].windows[0].pages; }

const Planted windows[] = {
    {"a page of what is alive",
     [](Plan& p) {
       pages(p) = {7, 5};
     },
     "instruction 2 (add): %b [1099511627776, 1099511628032) overlaps operand 0, %h [1024, 1280), but not exactly"},
    {"a write over half of what is alive", [](Plan& p) { move(p, work, 1280); },
     "its workspace %n.workspace [1280, 1536) overlaps operand %b.square"},
    {"a write over what a window shows and is read later",
     [](Plan& p) { move(p, n, 1280), move(p, work, 768), p.slots[b_square].last = p.slots[b].last = 5; },
     "instruction 3 (neg): %n [1280, 1536) overlaps operand 0, %b [1099511627776, 1099511628032), but not exactly"},
    {"a page behind the function's part", [](Plan& p) { step(p).transient_bytes = 896; },
     "%b [1099511627776, 1099511628032) ends outside the 896 transient bytes"},
    {"a page that is persistent",
     [](Plan& p) {
       pages(p) = {7, -1};
     },
     "it shows pages -1 to 7 of 8"},
    {"a page behind the arena",
     [](Plan& p) {
       pages(p) = {8, 6};
     },
     "it shows pages 6 to 8 of 8"},
    {"a page twice",
     [](Plan& p) {
       pages(p) = {6, 6};
     },
     "it shows a page twice"},
    {"no page", [](Plan& p) { pages(p).clear(); }, "it shows no page"},
    {"a slot that ends behind its window", [](Plan& p) { pages(p) = {6}; }, "slot 5 (b): ends at byte 1099511628032"},
    {"a window elsewhere", [](Plan& p) { p.arenas[0].windows[0].offset += 128; },
     "window at 1099511627904: it does not begin at 1099511627776"},
    {"pages that are not aligned", [](Plan& p) { p.arenas[0].page_bytes = 100; }, "windows of pages of 100 bytes"},
};

// Returns an empty string for a plan that passes.
std::string complaint(const Plan& plan) {
  Status status = check_plan(plan);
  return status ? take_diag(std::move(status)).text() : "";
}

template <size_t N>
void check_caught(const Planted (&faults)[N], Plan (*good)() = sample_plan) {
  for (const Planted& fault : faults) {
    CAPTURE(fault.what);
    Plan plan = good();
    fault.plant(plan);
    std::string text = complaint(plan);
    CAPTURE(text);
    CHECK(text.find(fault.message) != std::string::npos);
  }
}

TEST_SUITE("unit") {
  TEST_CASE("checker: a good plan passes") { CHECK(complaint(sample_plan()) == ""); }

  TEST_CASE("checker: bytes that are shared wrongly") { check_caught(sharing); }
  TEST_CASE("checker: persistent bytes") { check_caught(persistence); }
  TEST_CASE("checker: layout and sums") { check_caught(sums); }
  TEST_CASE("checker: slots in windows") {
    CHECK(complaint(sample_plan_with_window()) == "");
    check_caught(windows, sample_plan_with_window);
  }
  TEST_CASE("checker: copies between memories") {
    CHECK(complaint(plan_with_host()) == "");
    check_caught(copies, plan_with_host);
  }
  TEST_CASE("checker: a next value in pieces") {
    CHECK(complaint(plan_in_pieces()) == "");
    check_caught(pieces, plan_in_pieces);
  }

  TEST_CASE("checker: parts that lie in their wholes") {
    CHECK(complaint(plan_of_parts()) == "");
    check_caught(of_parts, plan_of_parts);
  }
  TEST_CASE("checker: a part of a state is read until the state changes") {
    Plan plan = sample_plan();
    plan.device.alignment_bytes = 128;
    plan.slots.push_back(make_slot("half", 128, 0, 4, 4, Category::Temporary, {32}));
    plan.slots.back().part_of = w;
    auto& instructions = step(plan).instructions;
    Instruction slice = make_instruction("slice", {w}, slot_count, Phase::Forward);
    slice.attrs = {{"starts", Ints{32}}, {"steps", Ints{1}}, {"sizes", Ints{32}}};
    instructions.insert(instructions.begin() + 4, slice);
    for (SlotId id : {x, h, a, b, b_square, n, work, w_next, loss})
      plan.slots[id].first += plan.slots[id].first >= 4, plan.slots[id].last += plan.slots[id].last >= 4;
    CHECK(complaint(plan) == "");
    plan.slots.back().last = 5;
    CHECK(complaint(plan).find(
              "result %w.next [0, 256) is written over %half [128, 256), which lives to instruction 5") !=
          std::string::npos);
  }

  // The parameter and the constant lie side by side, as the concatenation has them.
  TEST_CASE("checker: a concatenation of what persists is read until one of it changes") {
    Plan plan = sample_plan();
    plan.slots.push_back(make_slot("both", 0, 0, 4, 4, Category::Temporary, {128}));
    Instruction concat = make_instruction("concat", {w, table}, slot_count, Phase::Forward);
    concat.attrs = {{"axis", 0}};
    auto& instructions = step(plan).instructions;
    instructions.insert(instructions.begin() + 4, concat);
    for (SlotId id : {x, h, a, b, b_square, n, work, w_next, loss})
      plan.slots[id].first += plan.slots[id].first >= 4, plan.slots[id].last += plan.slots[id].last >= 4;
    CHECK(complaint(plan) == "");
    Plan late = plan;
    late.slots.back().last = 5;
    CHECK(
        complaint(late).find("result %w.next [0, 256) is written over %both [0, 512), which lives to instruction 5") !=
        std::string::npos);
    step(plan).instructions[4].operands = {table, w};
    CHECK(complaint(plan).find("%both [0, 512) overlaps operand 0, %table [256, 512), which concat does not allow") !=
          std::string::npos);
  }

  TEST_CASE("checker: a copy puts the next value into its state") {
    Plan plan = sample_plan();
    plan.slots[w_next].in_place_of = -1;
    step(plan).instructions[4] = make_instruction("copy", {b}, w_next, Phase::Update);
    CHECK(complaint(plan) == "");
  }

  TEST_CASE("checker: 60000 instructions in under a second of the processor") {
    Plan plan = sample_plan();
    PlanFunction& function = step(plan);
    int32_t count = 60000, last = 5;
    for (SlotId from = b; last < count; ++last) {
      // Each negates the result of the one before, first into other bytes and then in place.
      bool in_place = last % 2 == 0;
      Slot slot = make_slot("chain", plan.slots[from].offset, 0, last + 1, last + 2, Category::Temporary);
      if (in_place)
        slot.in_place_of = from;
      else
        slot.offset = plan.slots[from].offset == 1280 ? 768 : 1280;
      plan.slots[from].last = last + 1;
      plan.slots.push_back(slot);
      auto to = static_cast<SlotId>(plan.slots.size() - 1);
      function.instructions.push_back(make_instruction("neg", {from}, to, Phase::Update));
      from = to;
    }
    plan.slots.back().last = last;
    plan.slots[b_square].last = plan.slots[b].last;
    plan.slots[loss].last = plan.slots[w_next].last = last;
    const std::clock_t start = std::clock();
    CHECK(complaint(plan) == "");
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    CHECK(seconds < 1);
    MESSAGE("checked in ", seconds, " processor seconds");
  }
}

}  // namespace
}  // namespace plimsoll
