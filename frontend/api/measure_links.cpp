#include "frontend/api/measure_links.h"

#include "frontend/api/job.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/host_name.h"
#include "runtime/cuda/loader.h"
#include "runtime/executor.h"
#include "runtime/single_op_plan.h"

#include <unistd.h>
#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <set>

namespace plimsoll {
namespace {

constexpr int64_t least_bytes = 4 << 10, most_bytes = 64 << 20;
constexpr int repeats = 7;

// Of the ranks' hosts, by name.
struct Hosts {
  int64_t count = 1, most_ranks = 1;
  std::vector<HostName> of_rank;
};

Result<Hosts> find_hosts(Communicator& ranks) {
  const HostName own = host_name();
  std::vector<HostName> all(static_cast<size_t>(ranks.ranks()));
  if (Status s = ranks.gather_all(own.data(), all.data(), sizeof own)) return s;
  const std::set<HostName> names(all.begin(), all.end());
  Hosts hosts{static_cast<int64_t>(names.size()), 1, std::move(all)};
  for (const auto& name : names)
    hosts.most_ranks =
        std::max<int64_t>(hosts.most_ranks, std::count(hosts.of_rank.begin(), hosts.of_rank.end(), name));
  return hosts;
}

// A plan of one collective whose whole has `bytes`.
Result<Plan> plan_of_collective(llvm::StringRef name, int64_t bytes, int64_t ranks, const DeviceDescription& device) {
  const OpDef& op = get_op(name);
  const int64_t whole = bytes / dtype_bytes(DType::F32) / ranks * ranks, piece = whole / ranks;
  Attrs attrs{{"axis", std::string("data")}, {"ranks", ranks}};
  if (name != "reduce_all") attrs.set("shape", Ints{name == "gather_pieces" ? whole : piece});
  const Type operand(DType::F32, {name == "gather_pieces" ? piece : whole});
  const std::array<const Type*, 1> operands{&operand};
  const OpCall call(op, attrs, operands);
  Result<Types> results = infer(call);
  if (!results) return results.takeError();
  const KernelCandidate kernel = kernel_catalog_for(device)->candidates(op, call, *results).front();
  Plan plan = plan_of({op, call, *results, kernel.name, kernel.workspace_bytes}, device);
  plan.mesh[MeshAxis::Data] = ranks;
  return plan;
}

Result<double> slowest_of(double own, Communicator& ranks) {
  std::vector<double> all(static_cast<size_t>(ranks.ranks()));
  if (Status s = ranks.gather_all(&own, all.data(), sizeof own)) return s;
  return *std::max_element(all.begin(), all.end());
}

// The fastest of a few runs, each that of the slowest rank.
Result<double> time_of(const Plan& plan, Communicator& ranks) {
  ExecutorOptions options;
  options.ranks = &ranks;
  Result<std::unique_ptr<Executor>> executor = Executor::create(plan, options);
  if (!executor) return executor.takeError();
  double least = 0;
  for (int i = 0; i < repeats; ++i) {
    Result<int64_t> run = (*executor)->run(0);
    if (!run) return run.takeError();
    Result<llvm::ArrayRef<double>> times = (*executor)->times(0);
    if (!times) return times.takeError();
    Result<double> slowest = slowest_of(times->front(), ranks);
    if (!slowest) return slowest.takeError();
    if (i > 0) least = i == 1 ? *slowest : std::min(least, *slowest);  // the first run warms up
  }
  return least;
}

// Adds the slots and `times` times the instructions of a plan behind those of another.
void append(Plan& to, const Plan& from, int64_t times) {
  const auto shift = static_cast<SlotId>(to.slots.size());
  const int64_t bytes = to.arenas.front().bytes;
  for (Slot slot : from.slots) {
    slot.offset += bytes;
    to.slots.push_back(std::move(slot));
  }
  to.arenas.front().bytes += from.arenas.front().bytes;
  to.arenas.front().persistent_bytes = to.arenas.front().bytes;
  Instruction instruction = from.functions.front().instructions.front();
  for (SlotId& slot : instruction.operands) slot += shift;
  for (SlotId& slot : instruction.results) slot += shift;
  if (instruction.workspace >= 0) instruction.workspace += shift;
  auto& instructions = to.functions.front().instructions;
  instructions.insert(instructions.end(), static_cast<size_t>(times), instruction);
}

Result<Plan> plan_of_matmul(const DeviceDescription& device) {
  constexpr int64_t side = 4096;
  const bool halves = device.matmul_tflops_for(DType::BF16) > device.matmul_tflops_for(DType::F32);
  const Type matrix(halves ? DType::BF16 : DType::F32, {side, side});
  const OpDef& op = get_op("matmul");
  const std::array<const Type*, 2> operands{&matrix, &matrix};
  const Attrs none;
  const OpCall call(op, none, operands);
  Result<Types> results = infer(call);
  if (!results) return results.takeError();
  const KernelCandidate kernel = kernel_catalog_for(device)->candidates(op, call, *results).front();
  return plan_of({op, call, *results, kernel.name, kernel.workspace_bytes}, device);
}

// A sum over the ranks, if there is one, and beside it so many products. The whole run is timed, that of the slowest
// rank.
class Beside {
 public:
  static Result<Beside> create(Communicator& ranks, const DeviceDescription& device) {
    Result<Plan> sum = plan_of_collective("reduce_all", int64_t{256} << 20, ranks.ranks(), device);
    if (!sum) return sum.takeError();
    Result<Plan> product = plan_of_matmul(device);
    if (!product) return product.takeError();
    return Beside(ranks, std::move(*sum), std::move(*product));
  }

  Result<double> time(bool with_sum, int64_t products) const {
    Plan plan = sum_;
    if (!with_sum) plan.functions.front().instructions.clear();
    append(plan, product_, products);
    auto& instructions = plan.functions.front().instructions;
    if (with_sum && products > 0) instructions.front().done = static_cast<int32_t>(instructions.size());
    plan.functions.front().outputs.push_back({"last", instructions.back().results.front()});
    ExecutorOptions options;
    options.ranks = &ranks_;
    Result<std::unique_ptr<Executor>> executor = Executor::create(plan, options);
    if (!executor) return executor.takeError();
    double least = 0;
    for (int i = 0; i < repeats; ++i) {
      const auto start = std::chrono::steady_clock::now();
      Result<int64_t> run = (*executor)->run(0);
      if (!run) return run.takeError();
      Result<llvm::ArrayRef<double>> done = (*executor)->outputs(0, *run);
      if (!done) return done.takeError();
      const double own = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
      Result<double> slowest = slowest_of(own, ranks_);
      if (!slowest) return slowest.takeError();
      if (i > 0) least = i == 1 ? *slowest : std::min(least, *slowest);  // the first run warms up
    }
    return least;
  }

 private:
  Beside(Communicator& ranks, Plan sum, Plan product)
      : ranks_(ranks), sum_(std::move(sum)), product_(std::move(product)) {}

  Communicator& ranks_;
  Plan sum_, product_;
};

// With products that outlast the sum, what they take longer is what computing loses; with products that end a little
// before it, the sum has the link's share for nearly all of its time.
Status measure_beside(Communicator& ranks, const DeviceDescription& device, ClusterDescription& cluster) {
  Result<Beside> beside = Beside::create(ranks, device);
  if (!beside) return beside.takeError();
  constexpr int64_t few = 8;
  Result<double> sum_us = beside->time(true, 0), few_us = beside->time(false, few);
  if (!sum_us || !few_us) return llvm::joinErrors(sum_us.takeError(), few_us.takeError());
  const double product_us = *few_us / few;
  const auto longer = static_cast<int64_t>(2.5 * *sum_us / product_us) + 1;
  const auto shorter = static_cast<int64_t>(1.1 * *sum_us / product_us) + 1;
  Result<double> alone_us = beside->time(false, longer), both_us = beside->time(true, longer);
  Result<double> stretched_us = beside->time(true, shorter);
  if (!alone_us || !both_us || !stretched_us)
    return llvm::joinErrors(llvm::joinErrors(alone_us.takeError(), both_us.takeError()), stretched_us.takeError());
  cluster.interference = std::clamp((*both_us - *alone_us) / *sum_us, 0.0, 1.0);
  cluster.share = std::clamp(*sum_us / *stretched_us, 0.1, 1.0);
  return Status::success();
}

// All ranks' cards copy at the same time; the host whose cards move the least counts.
Status measure_copies(Communicator& ranks, const Hosts& hosts, ClusterDescription& cluster) {
  Result<std::unique_ptr<CudaBackend>> backend = load_cuda_backend();
  if (!backend) return backend.takeError();
  double own = 0;
  if (Status s = to_status((*backend)->measure_host_copies(local_rank(), own))) return s;
  std::vector<double> all(hosts.of_rank.size());
  if (Status s = ranks.gather_all(&own, all.data(), sizeof own)) return s;
  std::map<HostName, double> of_host;
  for (size_t rank = 0; rank < all.size(); ++rank) of_host[hosts.of_rank[rank]] += all[rank];
  for (const auto& [host, gb_per_s] : of_host)
    if (cluster.host_copies_gb_per_s == 0 || gb_per_s < cluster.host_copies_gb_per_s)
      cluster.host_copies_gb_per_s = gb_per_s;
  return Status::success();
}

}  // namespace

Result<ClusterDescription> measure_links(Communicator& ranks, const DeviceDescription& device) {
  Result<Hosts> hosts = find_hosts(ranks);
  if (!hosts) return hosts.takeError();
  ClusterDescription cluster;
  cluster.hosts = hosts->count, cluster.cards = hosts->most_ranks;
  for (llvm::StringRef op : {"reduce_all", "reduce_pieces", "gather_pieces"})
    for (int64_t bytes = least_bytes; bytes <= most_bytes; bytes *= 8) {
      Result<Plan> plan = plan_of_collective(op, bytes, ranks.ranks(), device);
      if (!plan) return plan.takeError();
      Result<double> us = time_of(*plan, ranks);
      if (!us) return us.takeError();
      cluster.measured.push_back({op.str(), ranks.ranks(), bytes, *us});
    }
  (cluster.hosts > 1 ? cluster.network : cluster.link) = fit_link(cluster.measured);
  if (device.backend != "cuda") return cluster;  // a processor runs one after the other
  if (Status s = measure_beside(ranks, device, cluster)) return s;
  if (Status s = measure_copies(ranks, *hosts, cluster)) return s;
  return cluster;
}

}  // namespace plimsoll
