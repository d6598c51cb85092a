#include "passes/offload/overlap.h"
#include "passes/remat/remat.h"
#include "tests/support/fit_problems.h"

#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

// Searches published rematerialisation graphs for the least added time at fractions of their peak:
//   remat_graphs [--seconds S] [--budget F,F,...] [--offload X] GRAPH.json...
// With --offload every value may also wait on the host, and copying all of them in one direction takes X times as long
// as all computing. A line then has the added time of remats alone, of both, and of both after the copies are
// overlapped. A graph is node-link JSON. Nodes carry cost_cpu and cost_ram, or duration and out_cost; links carry
// source and target, or "0" and "1"; ops run in the order of graph.order, or else of the nodes.

namespace {

using namespace plimsoll;

struct Graph {
  std::vector<int64_t> cost, bytes;
  std::vector<std::pair<int64_t, int64_t>> uses;
  std::vector<int64_t> order;
};

int64_t number(const llvm::json::Object& object, llvm::StringRef one, llvm::StringRef other) {
  if (auto value = object.getInteger(one)) return *value;
  auto value = object.getInteger(other);
  return value ? *value : 0;
}

bool read_graph(const char* path, Graph& graph) {
  auto file = llvm::MemoryBuffer::getFile(path);
  if (!file) return false;
  auto json = llvm::json::parse((*file)->getBuffer());
  if (!json) return llvm::consumeError(json.takeError()), false;
  const llvm::json::Object* top = json->getAsObject();
  const llvm::json::Array* nodes = top ? top->getArray("nodes") : nullptr;
  const llvm::json::Array* links = top ? top->getArray("links") : nullptr;
  if (!nodes || !links) return false;
  for (const llvm::json::Value& node : *nodes) {
    graph.cost.push_back(number(*node.getAsObject(), "cost_cpu", "duration"));
    graph.bytes.push_back(number(*node.getAsObject(), "cost_ram", "out_cost"));
  }
  for (const llvm::json::Value& link : *links)
    graph.uses.push_back({number(*link.getAsObject(), "source", "0"), number(*link.getAsObject(), "target", "1")});
  graph.order.resize(nodes->size());
  std::iota(graph.order.begin(), graph.order.end(), 0);
  const llvm::json::Object* about = top->getObject("graph");
  const llvm::json::Array* order = about ? about->getArray("order") : nullptr;
  for (size_t i = 0; order && i < graph.order.size(); ++i) graph.order[i] = *(*order)[i].getAsInteger();
  return true;
}

RematProblem problem_of(const Graph& graph) {
  RematProblem problem;
  size_t n = graph.order.size();
  std::vector<int32_t> place(n);
  problem.ops.resize(n);
  problem.live_out.assign(n, 0);
  for (size_t i = 0; i < n; ++i) {
    size_t node = static_cast<size_t>(graph.order[i]);
    place[node] = static_cast<int32_t>(i);
    problem.ops[i].cost_us = static_cast<double>(graph.cost[node]);
    problem.ops[i].writes.push_back(static_cast<int32_t>(i));
    problem.value_bytes.push_back(graph.bytes[node]);
  }
  for (auto [from, to] : graph.uses) {
    auto& reads = problem.ops[static_cast<size_t>(place[static_cast<size_t>(to)])].reads;
    int32_t value = place[static_cast<size_t>(from)];
    if (std::find(reads.begin(), reads.end(), value) == reads.end()) reads.push_back(value);
  }
  return problem;
}

double compute_us(const RematProblem& problem) {
  double total = 0;
  for (const RematOp& op : problem.ops)
    if (op.engine == Engine::Compute) total += op.cost_us;
  return total;
}

void offer_copies(RematProblem& problem, double share) {
  double bytes = std::accumulate(problem.value_bytes.begin(), problem.value_bytes.end(), 0.0);
  double us_per_byte = share * compute_us(problem) / bytes;
  for (size_t v = 0; v < problem.value_bytes.size(); ++v) {
    double us = us_per_byte * static_cast<double>(problem.value_bytes[v]);
    problem.offloads.push_back({static_cast<int32_t>(v), us, us});
  }
}

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

const char* graph_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash ? slash + 1 : path;
}

double proven_min_us(const RematProblem& problem, int64_t limit) {
  return std::max(min_added_us(problem, limit), min_added_us_of_blocks(problem, limit));
}

void search(const char* path, const RematProblem& problem, const std::vector<double>& budgets,
            const RematOptions& options) {
  int64_t peak = measure_remats(problem, {}).peak_bytes;
  double total = compute_us(problem);
  for (double budget : budgets) {
    int64_t limit = static_cast<int64_t>(budget * static_cast<double>(peak));
    Stopwatch watch;
    RematPlan plan = plan_within(problem, limit, options);
    double seconds = watch.seconds(), bound = proven_min_us(problem, limit);
    std::printf("%-28s %6d %7.2f %9.4f %9.4f %8.2f %9zu  %s\n", graph_name(path), problem.op_count(), budget,
                100 * plan.added_us / total, 100 * bound / total, seconds, plan.remats.size(),
                plan.peak_bytes <= limit ? "" : "does not fit");
    std::fflush(stdout);
  }
}

void search_with_copies(const char* path, const RematProblem& problem, const std::vector<double>& budgets,
                        const RematOptions& options, double share) {
  RematProblem offered = problem;
  offer_copies(offered, share);
  int64_t peak = measure_remats(problem, {}).peak_bytes;
  double total = compute_us(problem);
  for (double budget : budgets) {
    int64_t limit = static_cast<int64_t>(budget * static_cast<double>(peak));
    Stopwatch watch;
    RematPlan remats_only = plan_within(problem, limit, options);
    double seconds = watch.seconds();
    RematPlan plan = plan_within(offered, limit, options);
    double both_seconds = watch.seconds() - seconds, bound = min_added_us(offered, limit);
    Extras remats, reloads;
    for (const Remat& repeat : plan.remats) remats.insert({repeat.before, repeat.op});
    for (const Reload& reload : plan.reloads) reloads.insert({reload.before, reload.value});
    Stopwatch overlap_watch;
    Overlap overlap = overlap_within(with_extras(offered, remats, reloads), limit);
    std::printf("%-28s %7.2f %9.4f%c %9.4f%c %9.4f %9.4f %8.2f %8.2f %8.4f %7zu %7zu\n", graph_name(path), budget,
                100 * remats_only.added_us / total, remats_only.peak_bytes <= limit ? ' ' : '!',
                100 * plan.added_us / total, plan.peak_bytes <= limit ? ' ' : '!', 100 * bound / total,
                100 * (overlap.total_us - total) / total, seconds, both_seconds, overlap_watch.seconds(),
                plan.remats.size(), plan.reloads.size());
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  RematOptions options;
  std::vector<double> budgets = {0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3};
  double offload = 0;
  std::vector<const char*> paths;
  for (int i = 1; i < argc; ++i) {
    if (i + 1 < argc && std::strcmp(argv[i], "--seconds") == 0) {
      options.seconds = std::atof(argv[++i]);
    } else if (i + 1 < argc && std::strcmp(argv[i], "--offload") == 0) {
      offload = std::atof(argv[++i]);
    } else if (i + 1 < argc && std::strcmp(argv[i], "--budget") == 0) {
      budgets.clear();
      for (const char* at = argv[++i]; at; at = std::strchr(at, ','))
        budgets.push_back(std::atof(*at == ',' ? ++at : at));
    } else {
      paths.push_back(argv[i]);
    }
  }
  if (offload > 0)
    std::printf("%-28s %7s %10s %10s %9s %9s %8s %8s %8s %7s %7s\n", "graph", "budget", "remats %", "both %", "bound %",
                "overlap %", "s", "both s", "lap s", "remats", "reloads");
  else
    std::printf("%-28s %6s %7s %9s %9s %8s %9s\n", "graph", "ops", "budget", "added %", "bound %", "s", "remats");
  bool ok = true;
  for (const char* path : paths) {
    Graph graph;
    ok &= read_graph(path, graph);
    if (offload > 0)
      search_with_copies(path, problem_of(graph), budgets, options, offload);
    else
      search(path, problem_of(graph), budgets, options);
  }
  return ok ? 0 : 1;
}
