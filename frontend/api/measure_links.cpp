#include "frontend/api/measure_links.h"

#include "frontend/api/job.h"
#include "runtime/executor.h"
#include "runtime/single_op_plan.h"

#include <unistd.h>
#include <algorithm>
#include <array>
#include <set>

namespace plimsoll {
namespace {

constexpr int64_t least_bytes = 4 << 10, most_bytes = 64 << 20;
constexpr int repeats = 7;

// Of the ranks' hosts, by name.
struct Hosts {
  int64_t count = 1, most_ranks = 1;
};

Result<Hosts> find_hosts(Communicator& ranks) {
  std::array<char, 256> own{};
  gethostname(own.data(), own.size() - 1);
  std::vector<std::array<char, 256>> all(static_cast<size_t>(ranks.ranks()));
  if (Status s = ranks.gather_all(own.data(), all.data(), sizeof own)) return s;
  const std::set<std::array<char, 256>> names(all.begin(), all.end());
  Hosts hosts{static_cast<int64_t>(names.size()), 1};
  for (const auto& name : names)
    hosts.most_ranks = std::max<int64_t>(hosts.most_ranks, std::count(all.begin(), all.end(), name));
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
    const double own = times->front();
    std::vector<double> all(static_cast<size_t>(ranks.ranks()));
    if (Status s = ranks.gather_all(&own, all.data(), sizeof own)) return s;
    const double slowest = *std::max_element(all.begin(), all.end());
    if (i > 0) least = i == 1 ? slowest : std::min(least, slowest);  // the first run warms up
  }
  return least;
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
  return cluster;
}

}  // namespace plimsoll
