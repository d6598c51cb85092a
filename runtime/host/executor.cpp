#include "runtime/host/executor.h"

// Everything a step needs is resolved when the plan is loaded: kernels, operand views, prepared
// library objects. A step is a walk over an array.

#include "ir/units.h"
#include "runtime/host/kernels.h"

#include <chrono>
#include <cstring>
#include <omp.h>
#include <sys/mman.h>
#include <unistd.h>

namespace plimsoll {
namespace {

// Arena memory, zero at first. Mapped, so that pages cost nothing before they are touched.
class Memory {
 public:
  static Result<Memory> allocate(int64_t bytes, llvm::StringRef what) {
    if (bytes == 0) return Memory();
    int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages > 0 && bytes > pages * page)
      return system_error(what + " needs " + format_bytes(bytes) + ", this machine has " + format_bytes(pages * page));
    void* at = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return system_error(what + ": " + format_bytes(bytes) + " cannot be allocated");
    madvise(at, static_cast<size_t>(bytes), MADV_HUGEPAGE);
    return Memory(static_cast<std::byte*>(at), bytes);
  }

  Memory() = default;
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Memory() {
    if (at_) munmap(at_, static_cast<size_t>(bytes_));
  }

  std::byte* data() const { return at_; }

 private:
  Memory(std::byte* at, int64_t bytes) : at_(at), bytes_(bytes) {}
  void swap(Memory& other) {
    std::swap(at_, other.at_);
    std::swap(bytes_, other.bytes_);
  }
  std::byte* at_ = nullptr;
  int64_t bytes_ = 0;
};

// An instruction with nothing left to look up.
struct Step {
  const OpDef* op = nullptr;
  const Attrs* attrs = nullptr;
  llvm::SmallVector<const Type*, 6> operand_types;
  llvm::SmallVector<TensorView, 6> operands, results;
  void* workspace = nullptr;
  std::optional<CpuCandidate> kernel;
  std::unique_ptr<PreparedKernel> prepared;
  llvm::SmallVector<SlotId, 4> dead_after, fresh;  // poison mode: what dies here, what is about to be written
};

class Executor : public HostExecutor {
 public:
  Executor(const Plan& plan, const ExecutorOptions& options) : plan_(plan), options_(options) {}

  Status prepare() {
    if (options_.threads > 0) omp_set_num_threads(options_.threads);
    for (const Arena& arena : plan_.arenas) {
      Result<Memory> memory = Memory::allocate(arena.bytes, (space_name(arena.space) + " arena").str());
      if (!memory) return memory.takeError();
      arenas_.push_back(std::move(*memory));
    }
    for (const PlanConstant& constant : plan_.constants)
      std::memcpy(view(constant.slot).data, constant.value->data(), static_cast<size_t>(constant.value->type().bytes()));
    for (size_t f = 0; f < plan_.functions.size(); ++f)
      if (Status s = prepare_function(f)) return s;
    return Status::success();
  }

  TensorView view(SlotId id) const override {
    const Slot& slot = plan_.slots[static_cast<size_t>(id)];
    size_t arena = 0;
    while (plan_.arenas[arena].space != slot.space) ++arena;
    return {slot.type, arenas_[arena].data() + slot.offset};
  }

  Status run(size_t function, const Observer* observer) override {
    std::vector<Step>& steps = functions_[function];
    for (size_t i = 0; i < steps.size(); ++i) {
      auto start = std::chrono::steady_clock::now();
      if (options_.poison) poison(steps[i].fresh);
      Step& step = steps[i];
      OpCall call(*step.attrs, step.operand_types);
      if (Status s = step.kernel->launch({*step.op, call, step.operands, step.results, step.workspace, step.prepared.get()}))
        return in_context(plan_.slots[static_cast<size_t>(plan_.functions[function].instructions[i].results[0])].name, std::move(s));
      times_[function][i] = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
      if (observer)
        if (Status s = (*observer)(static_cast<int32_t>(i))) return s;
      if (options_.poison) poison(step.dead_after);
    }
    return Status::success();
  }

  llvm::ArrayRef<double> last_times(size_t function) const override { return times_[function]; }
  int64_t prepared_bytes() const override { return library_.scratch_bytes(); }

 private:
  Status prepare_function(size_t f) {
    const PlanFunction& function = plan_.functions[f];
    functions_.emplace_back();
    times_.emplace_back(function.instructions.size(), 0.0);
    for (const Instruction& instruction : function.instructions) {
      Result<Step> step = prepare_step(instruction);
      if (!step) return step.takeError();
      functions_.back().push_back(std::move(*step));
    }
    if (options_.poison && !functions_.back().empty()) find_deaths(f);
    return Status::success();
  }

  Result<Step> prepare_step(const Instruction& instruction) {
    Step step;
    step.op = find_op(instruction.op);
    if (!step.op) return model_error("the plan needs the op '" + instruction.op + "', which this program does not know");
    step.attrs = &instruction.attrs;
    for (SlotId operand : instruction.operands) {
      step.operands.push_back(operand < 0 ? TensorView() : view(operand));
      step.operand_types.push_back(operand < 0 ? nullptr : &plan_.slots[static_cast<size_t>(operand)].type);
    }
    for (SlotId result : instruction.results) step.results.push_back(view(result));
    if (instruction.workspace >= 0) step.workspace = view(instruction.workspace).data;
    step.kernel = table_.find(instruction.op, instruction.kernel);
    if (!step.kernel)
      return model_error("the plan needs kernel '" + instruction.kernel + "' of " + instruction.op + ", which the CPU does not have; compile it with --device cpu");
    Types results;
    for (const TensorView& result : step.results) results.push_back(result.type);
    Result<std::unique_ptr<PreparedKernel>> prepared = step.kernel->prepare(library_, OpCall(*step.attrs, step.operand_types), results);
    if (!prepared) return prepared.takeError();
    step.prepared = std::move(*prepared);
    return step;
  }

  // A slot that owns its bytes dies after its last use unless another value took them over or they outlive the function.
  void find_deaths(size_t f) {
    std::vector<bool> taken_over(plan_.slots.size(), false);
    for (const Slot& slot : plan_.slots)
      if (slot.in_place_of >= 0) taken_over[static_cast<size_t>(plan_.storage_of(slot.in_place_of))] = true;
    int64_t persistent = plan_.arenas.front().persistent_bytes;
    for (size_t i = 0; i < plan_.slots.size(); ++i) {
      const Slot& slot = plan_.slots[i];
      if (slot.function != static_cast<int32_t>(f) || slot.view_of >= 0 || slot.offset < persistent) continue;
      std::vector<Step>& steps = functions_[f];
      if (slot.category != Category::Input && slot.in_place_of < 0) steps[static_cast<size_t>(slot.first)].fresh.push_back(static_cast<SlotId>(i));
      bool is_output = llvm::any_of(plan_.functions[f].outputs, [&](const PlanOutput& output) {
        return plan_.storage_of(output.slot) == static_cast<SlotId>(i);
      });
      if (!taken_over[i] && !is_output) steps[static_cast<size_t>(slot.last)].dead_after.push_back(static_cast<SlotId>(i));
    }
  }

  // All ones is a NaN in every float dtype, and far out of range as an index.
  void poison(llvm::ArrayRef<SlotId> slots) const {
    for (SlotId slot : slots) {
      TensorView bytes = view(slot);
      std::memset(bytes.data, 0xff, static_cast<size_t>(plan_.slots[static_cast<size_t>(slot)].bytes));
    }
  }

  const Plan& plan_;
  ExecutorOptions options_;
  CpuKernelTable table_;
  cpu::Library library_;
  std::vector<Memory> arenas_;
  std::vector<std::vector<Step>> functions_;
  std::vector<std::vector<double>> times_;
};

}  // namespace

Result<std::unique_ptr<HostExecutor>> HostExecutor::create(const Plan& plan, const ExecutorOptions& options) {
  if (plan.device.backend != "cpu")
    return model_error("the plan is for " + plan.device.name + "; this build runs plans for cpu");
  auto executor = std::make_unique<Executor>(plan, options);
  if (Status s = executor->prepare()) return s;
  return executor;
}

}  // namespace plimsoll
