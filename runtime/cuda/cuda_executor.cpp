#include "runtime/cuda/cuda_executor.h"

#include "runtime/check_kernels.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/host_name.h"
#include "runtime/cuda/loader.h"
#include "runtime/kernels/cuda_candidate.h"
#include "runtime/kernels/folded_conv.h"

#include <unistd.h>
#include <cstdlib>
#include <cstring>

namespace plimsoll {
namespace {

// Host memory for one slot after the other. First values of large models are tens of GiB, and fresh pages for each
// tensor would take longer than its copy.
class HostBytes {
 public:
  TensorView view(const Type& type) {
    if (type.bytes() > capacity_) {
      capacity_ = type.bytes();
      bytes_.reset(new std::byte[static_cast<size_t>(capacity_)]);
    }
    return {type, bytes_.get()};
  }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  int64_t capacity_ = 0;
};

class CudaExecutor : public Executor {
 public:
  CudaExecutor(const Plan& plan, std::unique_ptr<CudaBackend> backend)
      : plan_(plan), backend_(std::move(backend)), runs_(plan.functions.size(), 0) {}

  Status prepare(const ExecutorOptions& options) {
    CudaRanks ranks;
    if (options.ranks)
      if (Status s = meet(*options.ranks, ranks)) return s;
    return to_status(backend_->prepare(plan_, options, ranks));
  }

  Status write(SlotId slot, Visit fill) override {
    const TensorView bytes = written_.view(plan_.slots[static_cast<size_t>(slot)].type);
    if (Status s = fill(bytes)) return s;
    return to_status(backend_->upload(slot, bytes.data));
  }

  Status read(SlotId slot, Visit use) override {
    const TensorView bytes = read_.view(plan_.slots[static_cast<size_t>(slot)].type);
    if (Status s = to_status(backend_->download(slot, bytes.data))) return s;
    return use(bytes);
  }

  Status read_into(SlotId slot, const TensorView& to) override { return to_status(backend_->download(slot, to.data)); }

  Status pin(void* at, int64_t bytes) override { return to_status(backend_->pin(at, bytes)); }
  void unpin(void* at) override { backend_->unpin(at); }

  Status clear(SlotId slot) override { return to_status(backend_->clear(slot)); }

  Status set_scalar(SlotId slot, double value) override { return to_status(backend_->set_scalar(slot, value)); }

  Result<llvm::ArrayRef<TensorView>> next_inputs(size_t function) override {
    llvm::ArrayRef<TensorView> inputs;
    if (Status s = to_status(backend_->next_inputs(function, inputs))) return s;
    return inputs;
  }

  bool keeps_inputs(size_t function) const override { return runs_[function] > 0; }

  Result<int64_t> run(size_t function, const Observer* observer) override {
    written_ = {};
    read_ = {};
    const int64_t run = runs_[function];
    Status status = observer ? run_slowly(function, run, *observer) : to_status(backend_->start(function, run));
    if (status) return status;
    return runs_[function]++;
  }

  Result<llvm::ArrayRef<double>> outputs(size_t function, int64_t run) override {
    llvm::ArrayRef<double> values;
    if (Status s = to_status(backend_->outputs(function, run, values))) return s;
    return values;
  }

  Result<llvm::ArrayRef<double>> times(size_t function, Launches launches) override {
    if (Status s = to_status(backend_->measure(function, launches == Launches::InStep, times_))) return s;
    return llvm::ArrayRef<double>(times_);
  }

  bool runs_ahead() const override { return true; }

  Result<MemoryUse> memory_use() override {
    MemoryUse use;
    if (Status s = to_status(backend_->memory_use(use))) return s;
    return use;
  }

  void interrupt() override { backend_->interrupt(); }

 private:
  // Where a rank runs.
  struct Place {
    HostName host{};
    std::array<char, 64> visible{};  // of the host's cards, those that its launcher shows it
    int64_t card = 0;
    bool operator==(const Place&) const = default;
  };

  // By rank.
  static Result<std::vector<Place>> find_places(Communicator& all, int card) {
    Place own;
    own.host = host_name();
    if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"))
      std::copy_n(visible, std::min(std::strlen(visible), own.visible.size() - 1), own.visible.begin());
    own.card = card;
    std::vector<Place> places(static_cast<size_t>(all.ranks()));
    if (Status s = all.gather_all(&own, places.data(), sizeof own)) return s;
    return places;
  }

  // Two ranks on one card: NCCL would only say that its use is invalid.
  static Status check_cards(llvm::ArrayRef<Place> places) {
    for (size_t a = 0; a < places.size(); ++a)
      for (size_t b = a + 1; b < places.size(); ++b)
        if (places[a] == places[b])
          return usage_error("ranks " + llvm::Twine(a) + " and " + llvm::Twine(b) + " are both on card " +
                             llvm::Twine(places[a].card) + " of " + places[a].host.data() +
                             "; LOCAL_RANK says which card of its host a rank has");
    return Status::success();
  }

  // The first rank of each group names its meeting point.
  Status meet(Communicator& all, CudaRanks& ranks) {
    ranks.rank = static_cast<int>(all.rank());
    ranks.ranks = static_cast<int>(all.ranks());
    ranks.card = local_rank();
    Result<std::vector<Place>> places = find_places(all, ranks.card);
    if (!places) return places.takeError();
    if (Status s = check_cards(*places)) return s;
    for (size_t i = 0; i < mesh_axis_count; ++i) {
      const auto axis = static_cast<MeshAxis>(i);
      if (plan_.mesh[axis] == 1) continue;
      CudaGroup& group = ranks.groups[i];
      group.rank = static_cast<int>(plan_.mesh.coordinate(all.rank(), axis));
      group.ranks = static_cast<int>(plan_.mesh[axis]);
      CudaRanksId own{};
      if (group.rank == 0)
        if (Status s = to_status(backend_->make_ranks_id(own))) return s;
      std::vector<CudaRanksId> ids(static_cast<size_t>(all.ranks()));
      if (Status s = all.gather_all(&own, ids.data(), sizeof own)) return s;
      const auto members = plan_.mesh.group_of(all.rank(), axis);
      group.id = ids[static_cast<size_t>(members.front())];
      group.shares_arenas =
          axis != MeshAxis::Stage && llvm::all_of(members, [&](int64_t member) {
            return (*places)[static_cast<size_t>(member)].host == (*places)[static_cast<size_t>(all.rank())].host;
          });
    }
    return Status::success();
  }

  Status run_slowly(size_t function, int64_t run, const Observer& observer) {
    if (Status s = to_status(backend_->start_slowly(function))) return s;
    for (size_t i = 0; i < plan_.functions[function].instructions.size(); ++i) {
      if (Status s = to_status(backend_->run_instruction(function, static_cast<int32_t>(i)))) return s;
      if (Status s = observer(static_cast<int32_t>(i))) return s;
    }
    return to_status(backend_->finish_slowly(function, run));
  }

  const Plan& plan_;
  std::unique_ptr<CudaBackend> backend_;
  std::vector<int64_t> runs_;
  std::vector<double> times_;
  HostBytes written_, read_;  // until the next run
};

// For the plan's own device, as when the plan was made.
std::optional<int64_t> workspace_on(const DeviceDescription& device, const OpCall& written, llvm::ArrayRef<Type> made,
                                    llvm::StringRef kernel) {
  if (kernel == "reference") return 0;  // on the host
  const std::optional<FoldedConvolution> folded = FoldedConvolution::of(written, made);
  const OpCall call = folded ? folded->call() : written;
  const llvm::ArrayRef<Type> results = folded ? folded->results() : made;
  const std::optional<CudaKernel> found = find_cuda_kernel(call.op, kernel);
  if (!found || !found->candidate->accepts(call, results)) return std::nullopt;
  const CudaCandidate& candidate = *found->candidate;
  if (found->algorithm > 0 && candidate.accepts_others && !candidate.accepts_others(call, results)) return std::nullopt;
  return candidate.workspace_bytes ? candidate.workspace_bytes(call, results, device) : 0;
}

}  // namespace

Result<std::unique_ptr<Executor>> create_cuda_executor(const Plan& plan, const ExecutorOptions& options) {
  const auto need = [&](const OpCall& call, llvm::ArrayRef<Type> results, llvm::StringRef kernel) {
    return workspace_on(plan.device, call, results, kernel);
  };
  if (Status s = check_kernels(plan, need)) return s;
  Result<std::unique_ptr<CudaBackend>> backend = load_cuda_backend();
  if (!backend) return backend.takeError();
  auto executor = std::make_unique<CudaExecutor>(plan, std::move(*backend));
  if (Status s = executor->prepare(options)) return s;
  return executor;
}

}  // namespace plimsoll
