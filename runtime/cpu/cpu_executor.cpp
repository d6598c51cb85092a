#include "runtime/cpu/cpu_executor.h"

// Everything a step needs is resolved when the plan is loaded: kernels, operand views, prepared
// library objects. A step is a walk over an array.

#include "ir/support/free_memory.h"
#include "ir/support/units.h"
#include "runtime/check_kernels.h"
#include "runtime/comm/rank_watch.h"
#include "runtime/cpu/kernels.h"
#include "runtime/last_uses.h"
#include "runtime/planned_step.h"

#include "llvm/ADT/ScopeExit.h"

#include <omp.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cstring>

namespace plimsoll {
namespace {

// Arena memory, zero at first. Mapped, so that pages cost nothing before they are touched.
class Memory {
 public:
  static Result<Memory> allocate(int64_t bytes, llvm::StringRef what) {
    if (bytes == 0) return Memory();
    if (Status s = check_size(bytes, what)) return s;
    void* at = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return system_error(what + ": " + format_bytes(bytes) + " cannot be allocated");
    madvise(at, static_cast<size_t>(bytes), MADV_HUGEPAGE);
    return Memory(static_cast<std::byte*>(at), bytes);
  }

  // With the arena's windows behind it: a file without a name, of which each shows pages once more.
  static Result<Memory> in_pages(const Arena& arena, llvm::StringRef what) {
    const ArenaAddresses addresses(arena);
    if (Status s = check_size(addresses.mapped_bytes, what)) return s;
    if (arena.page_bytes % sysconf(_SC_PAGESIZE) != 0)
      return system_error(what + ": its pages of " + llvm::Twine(arena.page_bytes) +
                          " bytes are not whole pages of this machine, of " + llvm::Twine(sysconf(_SC_PAGESIZE)));
    const int file = memfd_create("plimsoll arena", MFD_CLOEXEC);
    const auto close_file = llvm::make_scope_exit([&] {
      if (file >= 0) close(file);
    });
    void* at = MAP_FAILED;
    if (file >= 0 && ftruncate(file, addresses.mapped_bytes) == 0)
      at = mmap(nullptr, static_cast<size_t>(addresses.bytes()), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
      return system_error(what + ": " + format_bytes(addresses.mapped_bytes) + " cannot be allocated");
    Memory memory(static_cast<std::byte*>(at), addresses.bytes());
    memory.lead_bytes_ = addresses.lead_bytes;
    const auto show = [&](int64_t address, int64_t bytes, int64_t in_file) {
      return mmap(memory.at_ + address, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                  file, in_file) != MAP_FAILED;
    };
    bool is_shown = show(0, addresses.mapped_bytes, 0);
    for (const PageWindow& window : arena.windows)
      for (size_t i = 0, end; i < window.pages.size(); i = end) {
        end = i + 1;
        while (end < window.pages.size() && window.pages[end] == window.pages[end - 1] + 1) ++end;
        const auto begin = static_cast<int64_t>(i) * arena.page_bytes;
        is_shown &= show(addresses.mapped_bytes + window.offset - windows_begin + begin,
                         static_cast<int64_t>(end - i) * arena.page_bytes,
                         mapped_page(arena, window.pages[i]) * arena.page_bytes);
      }
    if (!is_shown)
      return system_error(what + ": its pages cannot be shown in " + llvm::Twine(arena.windows.size()) +
                          " windows; vm.max_map_count says how many mappings the system allows");
    return memory;
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

  std::byte* data() const { return at_ + lead_bytes_; }

 private:
  Memory(std::byte* at, int64_t bytes) : at_(at), bytes_(bytes) {}
  static Status check_size(int64_t bytes, llvm::StringRef what) {
    const int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages > 0 && bytes > pages * page)
      return system_error(what + " needs " + format_bytes(bytes) + ", this machine has " + format_bytes(pages * page));
    return Status::success();
  }
  void swap(Memory& other) {
    std::swap(at_, other.at_);
    std::swap(bytes_, other.bytes_);
    std::swap(lead_bytes_, other.lead_bytes_);
  }
  std::byte* at_ = nullptr;
  int64_t bytes_ = 0, lead_bytes_ = 0;
};

// Sets the number of OpenMP threads for the time of a call; 0 leaves it as it is.
class Threads {
 public:
  explicit Threads(int count) : before_(omp_get_max_threads()) {
    if (count > 0) omp_set_num_threads(count);
  }
  Threads(const Threads&) = delete;
  ~Threads() { omp_set_num_threads(before_); }

 private:
  int before_;
};

// oneDNN 2.7 writes its generated code to a null pointer where memory for it is refused. Its largest primitives take
// about a third of this.
constexpr int64_t max_generated_code_bytes = 16 << 20;

// An instruction with nothing left to look up.
struct Step : PlannedStep {
  std::optional<CpuCandidate> kernel;
  std::unique_ptr<PreparedKernel> prepared;
  MeshAxis axis = MeshAxis::Data;      // of ops of several ranks
  llvm::SmallVector<int32_t, 1> late;  // copies that are made right after this step
};

class CpuExecutor : public Executor {
 public:
  CpuExecutor(const Plan& plan, const ExecutorOptions& options) : plan_(plan), options_(options) {}

  Status prepare() {
    const Threads threads(options_.threads);
    const auto need = [&](const OpCall& call, llvm::ArrayRef<Type> results, llvm::StringRef kernel) {
      return workspace_of(call, results, kernel);
    };
    if (Status s = check_kernels(plan_, need)) return s;
    if (options_.ranks) collectives_.emplace(*options_.ranks, plan_.mesh);
    for (const Arena& arena : plan_.arenas) {
      const std::string what = (space_name(arena.space) + " arena").str();
      Result<Memory> memory =
          arena.windows.empty() ? Memory::allocate(arena.bytes, what) : Memory::in_pages(arena, what);
      if (!memory) return memory.takeError();
      arenas_.push_back(std::move(*memory));
    }
    // An arena of empty tensors alone has no address, with which memcpy must not be called.
    for (const PlanConstant& constant : plan_.constants)
      std::copy_n(static_cast<const char*>(constant.value->data()), constant.value->type().bytes(),
                  view(constant.slot).as<char>());
    for (size_t f = 0; f < plan_.functions.size(); ++f)
      if (Status s = prepare_function(f)) return s;
    return Status::success();
  }

  Status write(SlotId slot, Visit fill) override { return fill(view(slot)); }
  Status read(SlotId slot, Visit use) override { return use(view(slot)); }
  Status clear(SlotId slot) override {
    const TensorView bytes = view(slot);
    std::memset(bytes.data, 0, static_cast<size_t>(bytes.type.bytes()));
    return Status::success();
  }

  Status set_scalar(SlotId slot, double value) override {
    view(slot).set(0, value);
    return Status::success();
  }

  Result<llvm::ArrayRef<TensorView>> next_inputs(size_t f) override {
    return llvm::ArrayRef<TensorView>(functions_[f].inputs);
  }

  Result<int64_t> run(size_t f, const Observer* observer) override {
    const Threads threads(options_.threads);
    Function& function = functions_[f];
    for (size_t i = 0; i < function.steps.size(); ++i) {
      auto start = std::chrono::steady_clock::now();
      if (options_.poison) poison(function.last_uses[i].fresh);
      if (!is_late(plan_.functions[f].instructions[i]))
        if (Status s = launch(f, i)) return s;
      for (int32_t copy : function.steps[i].late)
        if (Status s = launch(f, static_cast<size_t>(copy))) return s;
      const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
      function.times[i] = function.runs == 0 ? us : std::min(function.times[i], us);  // others want the cores too
      if (observer)
        if (Status s = (*observer)(static_cast<int32_t>(i))) return s;
      if (options_.poison) poison(function.last_uses[i].dead_after);
    }
    keep_outputs(f);
    return function.runs++;
  }

  Result<llvm::ArrayRef<double>> outputs(size_t f, int64_t run) override {
    const size_t count = plan_.functions[f].outputs.size();
    return llvm::ArrayRef<double>(functions_[f].outputs).slice(static_cast<size_t>(run % runs_kept) * count, count);
  }

  Result<llvm::ArrayRef<double>> times(size_t f, Launches) override {
    return llvm::ArrayRef<double>(functions_[f].times);
  }

  bool runs_ahead() const override { return false; }

  Result<MemoryUse> memory_use() override {
    MemoryUse use;
    for (const Arena& arena : plan_.arenas) use.arena_bytes += arena.bytes;
    use.other_bytes = library_.scratch_bytes();
    return use;
  }

 private:
  struct Function {
    std::vector<Step> steps;
    std::vector<TensorView> inputs;
    std::vector<InstructionDeaths> last_uses;  // when poisoned
    std::vector<double> times;
    std::vector<double> outputs;  // a ring of runs_kept rows
    int64_t runs = 0;
  };

  std::optional<int64_t> workspace_of(const OpCall& call, llvm::ArrayRef<Type> results, llvm::StringRef kernel) const {
    for (const CpuCandidate& candidate : table_.candidates(call.op, call, results))
      if (candidate.name() == kernel) return candidate.workspace_bytes(call, results);
    return std::nullopt;
  }

  // What stages do together keeps its order.
  bool is_late(const Instruction& instruction) const {
    return options_.late_copies && instruction.done >= 0 && !instruction.attrs.has("peer");
  }

  Status launch(size_t f, size_t i) {
    Step& step = functions_[f].steps[i];
    if (options_.progress) options_.progress->instruction = static_cast<int32_t>(i);
    const OpCall call = step.op_call();
    if (Status s = step.kernel->launch(
            {step.kernel_call(call), step.prepared.get(), collectives_ ? collectives_->along(step.axis) : nullptr}))
      return in_context(plan_.slots[static_cast<size_t>(plan_.functions[f].instructions[i].results[0])].name,
                        std::move(s));
    return Status::success();
  }

  TensorView view(SlotId id) const { return view_in(arenas_, plan_, id); }

  Status prepare_function(size_t f) {
    const PlanFunction& planned = plan_.functions[f];
    Function& function = functions_.emplace_back();
    for (const PlanInput& input : planned.inputs) function.inputs.push_back(view(input.slot));
    for (const Instruction& instruction : planned.instructions) {
      Result<Step> step = prepare_step(instruction);
      if (!step) return step.takeError();
      function.steps.push_back(std::move(*step));
    }
    for (size_t i = 0; i < function.steps.size(); ++i)
      if (is_late(planned.instructions[i]))
        function.steps[static_cast<size_t>(planned.instructions[i].done) - 1].late.push_back(static_cast<int32_t>(i));
    function.times.assign(function.steps.size(), 0.0);
    function.outputs.assign(planned.outputs.size() * runs_kept, 0.0);
    if (options_.poison) function.last_uses = find_deaths(plan_, f);
    return Status::success();
  }

  void keep_outputs(size_t f) {
    Function& function = functions_[f];
    double* row =
        function.outputs.data() + static_cast<size_t>(function.runs % runs_kept) * plan_.functions[f].outputs.size();
    for (const PlanOutput& output : plan_.functions[f].outputs) {
      TensorView bytes = view(output.slot);
      *row++ = bytes.elements() > 0 ? bytes.get(0) : 0;
    }
  }

  Result<Step> prepare_step(const Instruction& instruction) {
    Result<PlannedStep> planned = plan_step(plan_, instruction, [&](SlotId slot) { return view(slot); });
    if (!planned) return planned.takeError();
    Step step{std::move(*planned)};
    step.kernel = table_.find(*step.op, instruction.kernel);  // check_kernels knows it
    const OpCall call = step.op_call();
    if (Status s = check_free_memory(max_generated_code_bytes, "the code of kernels")) return s;
    Result<std::unique_ptr<PreparedKernel>> prepared =
        step.kernel->prepare(library_, call, step.kernel_call(call).result_types());
    if (!prepared) return prepared.takeError();
    step.prepared = std::move(*prepared);
    if (step.op->collective || step.op->engine == Engine::Ranks)
      step.axis = *parse_axis(instruction.attrs.get_string("axis"));
    return step;
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
  std::optional<MeshCollectives> collectives_;
  std::vector<Memory> arenas_;
  std::vector<Function> functions_;
};

}  // namespace

Result<std::unique_ptr<Executor>> create_cpu_executor(const Plan& plan, const ExecutorOptions& options) {
  auto executor = std::make_unique<CpuExecutor>(plan, options);
  if (Status s = executor->prepare()) return s;
  return executor;
}

}  // namespace plimsoll
