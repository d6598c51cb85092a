#include "kernels/cuda/common/blocks_together.h"
#include "runtime/comm/rank_watch.h"
#include "runtime/cuda/backend/card.h"
#include "runtime/cuda/backend/copy_engines.h"
#include "runtime/cuda/backend/cudnn_plan.h"
#include "runtime/cuda/backend/device_memory.h"
#include "runtime/cuda/backend/host_reference.h"
#include "runtime/cuda/backend/jpeg_decoder.h"
#include "runtime/cuda/backend/launcher.h"
#include "runtime/cuda/backend/libraries.h"
#include "runtime/cuda/backend/paged_memory.h"
#include "runtime/cuda/backend/process_memory.h"
#include "runtime/cuda/backend/staging.h"
#include "runtime/cuda/backend/step.h"
#include "runtime/cuda/backend/workspaces.h"
#include "runtime/cuda/backend_abi.h"
#include "runtime/last_uses.h"

#include "ir/machine/collective_link.h"
#include "ir/support/units.h"

#include "llvm/ADT/StringMap.h"

// Runs a plan on one card. Everything is allocated and every kernel is loaded in prepare(): each function runs once on
// zeros, is captured as a graph, and from then on a step is one graph launch a function. Copies between memories are
// branches of the graph beside the chain of what computes. Functions outside of the step are launched kernel by kernel:
// the plan has no bytes for their graphs.

namespace plimsoll {
namespace {

struct Function {
  std::vector<Step> steps;
  std::vector<size_t> joined;  // how many steps each launch of a whole run takes
  FunctionCopies copies;
  std::vector<InstructionDeaths> last_uses;  // when poisoned
  std::unique_ptr<InputStaging> inputs;      // null: it has none
  OutputRing outputs;
  cudaGraphExec_t graph = nullptr;
};

class Backend : public CudaBackend {
 public:
  ~Backend() override {
    if (options_.progress) options_.progress->on_device = nullptr;
    if (plan_) cudaDeviceSynchronize();
    for (Function& function : functions_)
      if (function.graph) cudaGraphExecDestroy(function.graph);
  }

  CudaOutcome make_ranks_id(CudaRanksId& id) override { return Nccl::make_id(id); }

  CudaOutcome prepare(const Plan& plan, const ExecutorOptions& options, const CudaRanks& ranks) override {
    plan_ = &plan;
    options_ = options;
    ranks_ = ranks;
    process_memory_.emplace(ranks.card);
    if (Status s = find_card()) return s;
    if (Status s = libraries_.create(plan_->training.precision == "tf32")) return s;
    int held = 0;
    for (size_t axis = 0; axis < mesh_axis_count; ++axis) {
      if (ranks_.groups[axis].ranks > 1)
        if (Status s = libraries_.nccl(static_cast<MeshAxis>(axis)).join(ranks_.groups[axis])) return s;
      held = std::max(held, Nccl::multiprocessors_of(ranks_.groups[axis]));
    }
    cuda::multiprocessors_of_collectives = held;
    if (Status s = stream_.create()) return s;
    if (Status s = engines_.create()) return s;
    if (Status s = allocate()) return s;
    if (Status s = show_place()) return s;
    auto at = [&](SlotId slot) { return view(slot).data; };
    if (Status s = compile_fused()) return s;
    if (Status s = scalars_.create()) return s;
    functions_.resize(plan_->functions.size());
    for (size_t f = 0; f < functions_.size(); ++f) {
      if (Status s = prepare_function(f)) return s;
      if (!plan_->functions[f].inputs.empty()) {
        functions_[f].inputs = std::make_unique<InputStaging>();
        if (Status s = functions_[f].inputs->create(*plan_, f, at)) return s;
      }
      if (Status s = functions_[f].outputs.create(*plan_, f, at)) return s;
    }
    if (Status s = allocate_reference_staging()) return s;
    return warm_up();
  }

  CudaOutcome upload(SlotId slot, const void* from) override { return write(slot, from); }

  CudaOutcome download(SlotId slot, void* to) override {
    if (Status s = settle()) return s;
    TensorView from = view(slot);
    return cuda_status(cudaMemcpy(to, from.data, static_cast<size_t>(from.type.bytes()), cudaMemcpyDefault),
                       name_of(slot));
  }

  CudaOutcome pin(void* at, int64_t bytes) override {
    return cuda_status(cudaHostRegister(at, static_cast<size_t>(bytes), cudaHostRegisterDefault),
                       "pinning " + format_bytes(bytes) + " of host memory");
  }
  void unpin(void* at) override { cudaHostUnregister(at); }

  CudaOutcome clear(SlotId slot) override {
    const TensorView bytes = view(slot);
    if (Status s = settle()) return s;
    if (Status s = cuda_status(cudaMemsetAsync(bytes.data, 0, static_cast<size_t>(bytes.type.bytes()), stream_),
                               name_of(slot)))
      return s;
    return settle();
  }

  CudaOutcome set_scalar(SlotId slot, double value) override { return scalars_.send(view(slot), value, stream_); }

  CudaOutcome next_inputs(size_t f, llvm::ArrayRef<TensorView>& inputs) override {
    return functions_[f].inputs ? functions_[f].inputs->next(inputs) : Status::success();
  }

  CudaOutcome start(size_t f, int64_t run) override {
    if (Status s = send_inputs(f)) return s;
    Status launched = functions_[f].graph
                          ? cuda_status(cudaGraphLaunch(functions_[f].graph, stream_), plan_->functions[f].name)
                      : options_.poison ? launch_singly(f)
                                        : launch_joined(f);
    return launched ? std::move(launched) : functions_[f].outputs.record(run, stream_);
  }

  CudaOutcome start_slowly(size_t f) override { return send_inputs(f); }

  CudaOutcome run_instruction(size_t f, int32_t instruction) override {
    if (Status s = launch(f, static_cast<size_t>(instruction))) return s;
    return settle();
  }

  CudaOutcome finish_slowly(size_t f, int64_t run) override { return functions_[f].outputs.record(run, stream_); }

  CudaOutcome outputs(size_t f, int64_t run, llvm::ArrayRef<double>& values) override {
    if (Status s = functions_[f].outputs.wait(run, values)) return s;
    return reference_failure();
  }

  CudaOutcome measure(size_t f, bool in_step, std::vector<double>& microseconds) override {
    const std::vector<size_t> counts = counts_to_measure(f, in_step);
    std::vector<CudaEvent> events(counts.size() + 1);
    for (CudaEvent& event : events)
      if (Status s = event.create(true)) return s;
    if (functions_[f].inputs)
      if (Status s = functions_[f].inputs->repeat(stream_)) return s;
    cudaEventRecord(events[0], stream_);
    size_t at = 0;
    for (size_t i = 0; i < counts.size(); at += counts[i++]) {
      Status launched = counts[i] == 1
                            ? launch(f, at)
                            : launch_steps(llvm::ArrayRef(functions_[f].steps).slice(at, counts[i]), stream_);
      if (launched) return launched;
      cudaEventRecord(events[i + 1], stream_);
    }
    if (Status s = settle()) return s;
    microseconds.clear();
    for (size_t i = 0; i < counts.size(); ++i) {
      float ms = 0;
      if (Status s = cuda_status(cudaEventElapsedTime(&ms, events[i], events[i + 1]), "timing")) return s;
      share_out(f, counts[i], 1e3 * ms, microseconds);
    }
    return Status::success();
  }

  CudaOutcome memory_use(MemoryUse& use) override {
    for (const Arena& arena : plan_->arenas)
      if (arena.space == MemorySpace::Device) use.arena_bytes += arena.bytes;
    use.process_bytes = process_memory_->bytes(use.source);
    use.other_bytes = use.process_bytes > 0 ? use.process_bytes - use.arena_bytes : plan_->device.reserve_bytes();
    return {};
  }

  void interrupt() override {
    for (size_t axis = 0; axis < mesh_axis_count; ++axis) libraries_.nccl(static_cast<MeshAxis>(axis)).abort();
  }

  CudaOutcome make_jpeg_decoder(int card, std::unique_ptr<CudaJpegDecoder>& decoder) override {
    return plimsoll::make_jpeg_decoder(card, decoder);
  }

  CudaOutcome identify_card(CudaCard& card) override { return plimsoll::identify_card(card); }
  CudaOutcome measure_card(CudaCard& card) override { return plimsoll::measure_card(card); }
  CudaOutcome measure_host_copies(int card, double& gb_per_s) override {
    return plimsoll::measure_host_copies(card, gb_per_s);
  }
  CudaOutcome describe_card_to_cudnn(std::string& description) override {
    Result<std::string> described = plimsoll::describe_card_to_cudnn();
    if (!described) return Status(described.takeError());
    description = std::move(*described);
    return {};
  }
  CudaOutcome cudnn_workspaces(const Plan& plan, llvm::StringRef description, std::vector<int64_t>& bytes) override {
    return plimsoll::cudnn_workspaces(plan, description, bytes);
  }

 private:
  Status write(SlotId slot, const void* from) {
    if (Status s = settle()) return s;
    TensorView to = view(slot);
    // Not by cudaMemcpy: it may come back before a small copy has arrived, and no stream of ours waits for the default
    // stream.
    if (Status s = cuda_status(
            cudaMemcpyAsync(to.data, from, static_cast<size_t>(to.type.bytes()), cudaMemcpyDefault, stream_),
            name_of(slot)))
      return s;
    return cuda_status(cudaStreamSynchronize(stream_), name_of(slot));
  }

  Status find_card() {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0)
      return system_error("no NVIDIA card here; the plan is for " + plan_->device.name);
    if (ranks_.card >= count)
      return system_error("rank " + llvm::Twine(ranks_.rank) + " is to run on card " + llvm::Twine(ranks_.card) +
                          " of its host, which has " + llvm::Twine(count));
    if (Status s = cuda_status(cudaSetDevice(ranks_.card), "card " + llvm::Twine(ranks_.card))) return s;
    return options_.card ? check_card(*options_.card) : Status::success();
  }

  // Unlike cards have plans of their own, or budgets.
  Status check_card(const DeviceDescription& planned) const {
    cudaDeviceProp properties;
    if (Status s = cuda_status(cudaGetDeviceProperties(&properties, ranks_.card), "card " + llvm::Twine(ranks_.card)))
      return s;
    if (planned.describes(properties.name)) return Status::success();
    return system_error("rank " + llvm::Twine(ranks_.rank) + " is planned for " + planned.title + ", and card " +
                        llvm::Twine(ranks_.card) + " of its host is " + properties.name +
                        "; start the ranks in the order of the plan's devices");
  }

  Status allocate() {
    for (const Arena& arena : plan_->arenas) {
      const bool device = arena.space == MemorySpace::Device;
      std::string what = (space_name(arena.space) + " arena").str();
      Result<CudaMemory> memory = device ? device_arena(arena, what) : CudaMemory::pinned(arena.bytes, what);
      if (!memory) return memory.takeError();
      arenas_.push_back(std::move(*memory));
    }
    return Status::success();
  }

  // Ranks of one host reach into each other's arenas, where NCCL and the cards can.
  Result<CudaMemory> device_arena(const Arena& arena, llvm::StringRef what) {
    if (!arena.windows.empty()) return paged_device_memory(arena, what);
    llvm::SmallVector<const Nccl*, 2> sharing;
    for (size_t axis = 0; axis < mesh_axis_count; ++axis)
      if (ranks_.groups[axis].shares_arenas) sharing.push_back(&libraries_.nccl(static_cast<MeshAxis>(axis)));
    CudaMemory memory = sharing.empty() ? CudaMemory() : Nccl::shareable_memory(arena.bytes);
    if (!memory.data()) return CudaMemory::on_device(arena.bytes, what);
    for (const Nccl* nccl : sharing)
      if (Status s = nccl->share(memory)) return s;
    return memory;
  }

  // Of several ranks: where the device says which collective it is at.
  Status show_place() {
    if (!options_.progress || ranks_.ranks == 1) return Status::success();
    Result<CudaMemory> memory = CudaMemory::pinned(sizeof(int32_t), "progress");
    if (!memory) return memory.takeError();
    place_ = std::move(*memory);
    auto* place = reinterpret_cast<int32_t*>(place_.data());
    *place = -1;
    options_.progress->on_device = place;
    return Status::success();
  }

  TensorView view(SlotId id) const { return view_in(arenas_, *plan_, id); }

  const std::string& name_of(SlotId slot) const { return plan_->slots[static_cast<size_t>(slot)].name; }

  // All at once, since they are compiled in parallel.
  Status compile_fused() {
    std::vector<FusedSource> sources;
    for (const PlanFunction& function : plan_->functions)
      for (const Instruction& instruction : function.instructions) {
        if (instruction.op != "fused" || instruction.kernel == "reference") continue;
        Result<PlannedStep> step = plan_step(*plan_, instruction, [&](SlotId slot) { return view(slot); });
        if (!step) return step.takeError();
        const OpCall call = step->op_call();
        sources.push_back(fused_source(call, step->kernel_call(call).result_types()));
      }
    const cudaDeviceProp& card = libraries_.card();
    return libraries_.generated().compile(sources, 10 * card.major + card.minor);
  }

  Status prepare_function(size_t f) {
    for (const Instruction& instruction : plan_->functions[f].instructions) {
      Step& step = functions_[f].steps.emplace_back();
      if (Status s = prepare_step(instruction, step)) return in_context(name_of(instruction.results[0]), std::move(s));
    }
    auto* place = reinterpret_cast<int32_t*>(place_.data());
    if (Status s = functions_[f].copies.create(plan_->functions[f], place, device_place(static_cast<int32_t>(f), 0)))
      return s;
    llvm::ArrayRef<Step> steps = functions_[f].steps;
    const llvm::ArrayRef<Instruction> instructions = plan_->functions[f].instructions;
    const CollectiveShares shares = plan_->device.collective_shares();
    for (size_t at = 0; at < steps.size(); at += functions_[f].joined.back()) {
      CollectiveLaunch collectives(shares);
      size_t apart = at;
      do {
        if (steps[at].op->engine == Engine::Ranks) collectives.add(instructions[apart].predicted_us);
        ++apart;
      } while (apart < steps.size() && !functions_[f].copies.is_wait_at(apart) && !collectives.is_full());
      functions_[f].joined.push_back(count_joined(steps.slice(at, apart - at)));
    }
    if (options_.poison) functions_[f].last_uses = find_deaths(*plan_, f);
    return Status::success();
  }

  Status prepare_step(const Instruction& instruction, Step& step) {
    Result<PlannedStep> planned = plan_step(*plan_, instruction, [&](SlotId slot) { return view(slot); });
    if (!planned) return planned.takeError();
    static_cast<PlannedStep&>(step) = std::move(*planned);
    step.name = name_of(instruction.results[0]);
    const bool on_host = instruction.kernel == "reference";
    if (!on_host) {
      if (Status s = find_launcher(instruction.kernel, step)) return s;
      fold_volumes(step);
    }
    const OpCall call = step.op_call();
    const CudaCall launch = step.call_on(stream_, call);
    if (on_host) {
      step.prepared = std::make_unique<HostReference>(launch, step.name, reference_);
      reference_bytes_ = std::max(reference_bytes_, HostReference::staging_bytes(launch));
      return Status::success();
    }
    if (!step.launcher->prepare) return Status::success();
    Result<std::unique_ptr<CudaPrepared>> prepared = step.launcher->prepare(libraries_, launch);
    if (!prepared) return prepared.takeError();
    step.prepared = std::move(*prepared);
    return Status::success();
  }

  Status allocate_reference_staging() {
    Result<CudaMemory> memory = CudaMemory::pinned(reference_bytes_, "staging of ops that run on the host");
    if (!memory) return memory.takeError();
    reference_staging_ = std::move(*memory);
    reference_.staging = reference_staging_.data();
    return Status::success();
  }

  // A first run on zeros loads every kernel and lets the libraries make what they make late; then the arenas start
  // anew.
  Status warm_up() {
    if (Status s = clear()) return s;
    reference_.idle = true;
    for (size_t f = 0; f < functions_.size(); ++f) {
      if (Status s = launch_joined(f)) return s;
      if (Status s = settle()) return s;
      if (!options_.poison && plan_->calls_per_step(f) > 0)
        if (Status s = capture(f)) return s;
    }
    reference_.idle = false;
    if (Status s = clear()) return s;
    for (const PlanConstant& constant : plan_->constants)
      if (Status s = write(constant.slot, constant.value->data())) return s;
    return Status::success();
  }

  // How many instructions are timed together. Copies and what goes on between ranks are timed each.
  std::vector<size_t> counts_to_measure(size_t f, bool in_step) const {
    const Function& function = functions_[f];
    if (!in_step || options_.poison) return std::vector<size_t>(function.steps.size(), 1);
    std::vector<size_t> counts;
    size_t at = 0;
    for (size_t count : function.joined) {
      const bool together = function.steps[at].op->engine == Engine::Compute;
      counts.insert(counts.end(), together ? 1 : count, together ? count : 1);
      at += count;
    }
    return counts;
  }

  // Adds times of the next `count` instructions, by the bytes that each moves.
  void share_out(size_t f, size_t count, double us, std::vector<double>& microseconds) const {
    const auto shared = llvm::ArrayRef(plan_->functions[f].instructions).slice(microseconds.size(), count);
    double bytes = 0;
    for (const Instruction& each : shared) bytes += static_cast<double>(each.bytes_moved);
    for (const Instruction& each : shared)
      microseconds.push_back(bytes > 0 ? us * static_cast<double>(each.bytes_moved) / bytes
                                       : us / static_cast<double>(count));
  }

  Status send_inputs(size_t f) {
    return functions_[f].inputs ? functions_[f].inputs->send(stream_) : Status::success();
  }

  Status clear() {
    for (size_t i = 0; i < arenas_.size(); ++i)
      if (arenas_[i].data())
        if (Status s = cuda_status(cudaMemset(arenas_[i].data(), 0, static_cast<size_t>(arenas_[i].bytes())), "arena"))
          return s;
    return settle();
  }

  Status capture(size_t f) {
    const std::string& name = plan_->functions[f].name;
    if (Status s = cuda_status(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), name)) return s;
    Status launched = launch_joined(f);
    cudaGraph_t graph = nullptr;
    Status ended = cuda_status(cudaStreamEndCapture(stream_, &graph), name + ": capture");
    if (launched || ended) return llvm::joinErrors(std::move(launched), std::move(ended));
    Status made = cuda_status(
        cudaGraphInstantiate(&functions_[f].graph, graph, cudaGraphInstantiateFlagUseNodePriority), name + ": graph");
    cudaGraphDestroy(graph);
    if (made) return made;
    return cuda_status(cudaGraphUpload(functions_[f].graph, stream_), name + ": graph");
  }

  Status launch_joined(size_t f) {
    Function& function = functions_[f];
    llvm::ArrayRef<Step> steps = function.steps;
    size_t at = 0;
    for (size_t count : function.joined) {
      if (Status s = function.copies.wait(at, engines_, stream_)) return s;
      if (steps[at].op->engine != Engine::Compute) {
        if (Status s = function.copies.start(steps.slice(at, count), at, stream_)) return s;
      } else {
        if (Status s = launch_steps(steps.slice(at, count), stream_)) return s;
      }
      // Collectives go before the next kernel, which could take the multiprocessors that they need.
      if (steps[at].op->engine == Engine::Compute || steps[at].op->engine == Engine::Ranks)
        if (Status s = function.copies.launch_started(engines_)) return s;
      at += count;
    }
    return function.copies.wait(at, engines_, stream_);
  }

  Status launch_singly(size_t f) {
    for (size_t i = 0; i < functions_[f].steps.size(); ++i)
      if (Status s = launch(f, i)) return s;
    return Status::success();
  }

  Status launch(size_t f, size_t i) {
    if (!options_.poison) return launch_steps(functions_[f].steps[i], stream_);
    poison(functions_[f].last_uses[i].fresh);
    Status status = launch_steps(functions_[f].steps[i], stream_);
    poison(functions_[f].last_uses[i].dead_after);
    return status;
  }

  // All ones is a NaN in every float dtype, and far out of range as an index.
  void poison(llvm::ArrayRef<SlotId> slots) {
    for (SlotId slot : slots)
      cudaMemsetAsync(view(slot).data, 0xff, static_cast<size_t>(plan_->slots[static_cast<size_t>(slot)].bytes),
                      stream_);
  }

  Status settle() {
    if (Status s = cuda_status(cudaDeviceSynchronize(), "card")) return s;
    return reference_failure();
  }

  Status reference_failure() {
    std::lock_guard<std::mutex> lock(reference_.mutex);
    if (reference_.failure.empty()) return Status::success();
    return model_error(std::exchange(reference_.failure, ""));
  }

  const Plan* plan_ = nullptr;  // set by prepare()
  ExecutorOptions options_;
  CudaRanks ranks_;
  std::optional<ProcessMemory> process_memory_;  // made first: it looks at the card before anything is on it
  std::vector<CudaMemory> arenas_;               // outlive the communicators that know them
  CudaLibraries libraries_;
  CudaStream stream_;
  CopyEngines engines_;
  CudaMemory place_;  // empty: nobody watches
  HostReferenceState reference_;
  CudaMemory reference_staging_;
  int64_t reference_bytes_ = 0;
  ScalarStaging scalars_;
  std::vector<Function> functions_;
};

}  // namespace
}  // namespace plimsoll

extern "C" __attribute__((visibility("default"))) plimsoll::CudaBackend* plimsoll_cuda_backend() {
  return new plimsoll::Backend();
}
