#include "ir/eight_bit_moments.h"
#include "ir/machine/device.h"
#include "ir/ops/update/update_block.h"
#include "ir/support/align.h"
#include "runtime/executor.h"

#include <doctest/doctest.h>

// Updates and casts that stand side by side are launched together; with poison every instruction is launched by itself.
// Both must give the same bits.

using namespace plimsoll;

namespace {

struct Updates {
  Plan plan;
  std::vector<SlotId> states;

  SlotId add(const Type& type) {
    Arena& arena = plan.arenas.front();
    Slot& slot = plan.slots.emplace_back();
    slot.name = "slot" + std::to_string(plan.slots.size());
    slot.type = type;
    slot.bytes = type.bytes();
    slot.offset = arena.bytes;
    arena.bytes += align_to_tensor(slot.bytes);
    arena.persistent_bytes = arena.bytes;
    return static_cast<SlotId>(plan.slots.size() - 1);
  }

  void update(SlotId param, SlotId grad, SlotId step, SlotId lr, bool eight_bit = false) {
    const Type type = plan.slots[static_cast<size_t>(param)].type;
    const Type moment(eight_bit ? DType::U8 : type.dtype, type.shape);
    const SlotId m = add(moment), v = add(moment);
    Instruction& instruction = plan.functions.front().instructions.emplace_back();
    instruction.op = eight_bit ? "adamw_8bit" : "adamw";
    instruction.kernel = "fused";
    const SlotId norms = add(Type(DType::F32, {(type.elements() + update_block - 1) / update_block}));
    instruction.attrs = {{"beta1", 0.9}, {"beta2", 0.99}, {"eps", 1e-8}, {"weight_decay", 0.1}, {"norms", int64_t{1}}};
    if (eight_bit) {
      const SlotId scales = add(Type(DType::F32, {moment_blocks(type.elements()), 2}));
      instruction.operands = {param, grad, m, v, scales, step, lr};
      instruction.results = {param, m, v, scales, norms};
    } else {
      instruction.operands = {param, grad, m, v, step, lr};
      instruction.results = {param, m, v, norms};
    }
    states.insert(states.end(), instruction.results.begin(), instruction.results.end());
  }

  // With a 16-bit copy of the parameter.
  void update_with_copy(int64_t elements, DType dtype, SlotId step, SlotId lr) {
    const Type type(DType::F32, {elements});
    const SlotId param = add(type), grad = add(type);
    update(param, grad, step, lr);
    const SlotId copy = add(Type(dtype, {elements}));
    Instruction& instruction = plan.functions.front().instructions.back();
    instruction.attrs.set("copy_dtype", dtype);
    instruction.results.push_back(copy);
    states.push_back(copy);
  }

  void update_statistics(int64_t channels, bool variance) {
    const Type type(DType::F32, {channels});
    const SlotId running = add(type), batch = add(type);
    Instruction& instruction = plan.functions.front().instructions.emplace_back();
    instruction.op = "running_update";
    instruction.kernel = "fused";
    instruction.attrs = {{"momentum", 0.9}};
    if (variance) instruction.attrs.set("count", int64_t{6});
    instruction.operands = {running, batch};
    instruction.results = {running};
    states.push_back(running);
  }

  SlotId cast(SlotId x, DType to) {
    const SlotId y = add(Type(to, plan.slots[static_cast<size_t>(x)].type.shape));
    Instruction& instruction = plan.functions.front().instructions.emplace_back();
    instruction.op = "cast";
    instruction.kernel = "vectors";
    instruction.attrs = {{"to", to}};
    instruction.operands = {x};
    instruction.results = {y};
    states.push_back(y);
    return y;
  }
};

void require(Status status) {
  if (status) FAIL(llvm::toString(std::move(status)));
}

// More tensors than one launch takes, from one element to several blocks; two that read what an update before them
// writes; some with copies and some without; then statistics of norms, and casts of some and of no elements, down and
// back up.
Updates make_updates() {
  Updates updates;
  Result<DeviceCatalog> devices = DeviceCatalog::builtin();
  REQUIRE(bool(devices));
  Result<DeviceDescription> device = devices->find("h200");
  REQUIRE(bool(device));
  updates.plan.device = *device;
  updates.plan.arenas.emplace_back();
  updates.plan.functions.emplace_back().name = "update";
  const SlotId step = updates.add(Type(DType::I64, {})), lr = updates.add(Type(DType::F32, {}));
  SlotId last = -1;
  for (int64_t i = 0; i < 130; ++i) {
    const Type type(DType::F32, {1 + i * i});
    last = updates.add(type);
    updates.update(last, updates.add(type), step, lr);
  }
  for (int64_t i = 0; i < 40; ++i) {
    const SlotId param = updates.add(Type(DType::F32, {1 + i * i * i}));
    updates.update(param, updates.add(updates.plan.slots[static_cast<size_t>(param)].type), step, lr, true);
  }
  for (int i = 0; i < 2; ++i) {
    const SlotId next = updates.add(updates.plan.slots[static_cast<size_t>(last)].type);
    updates.update(next, last, step, lr);
    last = next;
  }
  for (int64_t i = 0; i < 48; ++i) {
    updates.update_with_copy(1 + i * i * 5, i % 3 == 0 ? DType::F16 : DType::BF16, step, lr);
    const Type type(DType::F32, {1 + i});
    const SlotId param = updates.add(type);
    updates.update(param, updates.add(type), step, lr);
  }
  for (int64_t i = 0; i < 70; ++i) updates.update_statistics(1 + i * i, i % 2 == 1);
  for (DType dtype : {DType::BF16, DType::F16}) {
    std::vector<SlotId> narrow;
    for (int64_t i = 0; i < 130; ++i) narrow.push_back(updates.cast(updates.add(Type(DType::F32, {i * i})), dtype));
    for (SlotId slot : narrow) updates.cast(slot, DType::F32);
  }
  return updates;
}

std::vector<Tensor> states_after(const Updates& updates, bool poison) {
  ExecutorOptions options;
  options.poison = poison;
  Result<std::unique_ptr<Executor>> executor = Executor::create(updates.plan, options);
  if (!executor) FAIL(llvm::toString(executor.takeError()));
  for (size_t slot = 0; slot < updates.plan.slots.size(); ++slot)
    require((*executor)->write(static_cast<SlotId>(slot), [&](const TensorView& view) {
      for (int64_t i = 0; i < view.elements(); ++i)
        view.set(i, 0.5 + 0.001 * static_cast<double>((i * 7 + static_cast<int64_t>(slot)) % 500));
      if (view.type.dtype == DType::I64) view.set_int(0, 3);
      if (view.type.dtype == DType::U8)
        for (int64_t i = 0; i < view.elements(); ++i) view.set_int(i, (i * 11 + static_cast<int64_t>(slot)) % 256);
      return Status::success();
    }));
  Result<int64_t> ran = (*executor)->run(0);
  if (!ran) FAIL(llvm::toString(ran.takeError()));
  std::vector<Tensor> states;
  for (SlotId slot : updates.states)
    require((*executor)->read(slot, [&](const TensorView& view) {
      states.emplace_back(view.type, view.data);
      return Status::success();
    }));
  return states;
}

}  // namespace

TEST_CASE("updates and casts launched together give the bits of those launched one by one") {
  const Updates updates = make_updates();
  const std::vector<Tensor> joined = states_after(updates, false), apart = states_after(updates, true);
  REQUIRE(joined.size() == 132 * 4 + 40 * 5 + 48 * 9 + 70 + 4 * 130);
  for (size_t i = 0; i < joined.size(); ++i) CHECK(joined[i] == apart[i]);
}
