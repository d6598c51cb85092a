#include "passes/fit/recompute.h"

#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

// Searches published rematerialisation graphs for the least recompute at fractions of their peak:
//   recompute_graphs [--seconds S] [--seed N] [--budget F,F,...] GRAPH.json...
// A graph is node-link JSON. Nodes carry cost_cpu and cost_ram, or duration and out_cost; links carry source and target, or
// "0" and "1"; ops run in the order of graph.order, or else of the nodes.

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

RecomputeProblem problem_of(const Graph& graph) {
  RecomputeProblem problem;
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

void search(const char* path, const RecomputeProblem& problem, const std::vector<double>& budgets, const RecomputeOptions& options) {
  const char* slash = std::strrchr(path, '/');
  int64_t peak = measure_repeats(problem, {}).peak_bytes;
  double total = 0;
  for (const RecomputeOp& op : problem.ops) total += op.cost_us;
  for (double budget : budgets) {
    int64_t limit = static_cast<int64_t>(budget * static_cast<double>(peak));
    auto start = std::chrono::steady_clock::now();
    RecomputePlan plan = recompute_within(problem, limit, options);
    std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    double bound = least_added_us(problem, limit);
    std::printf("%-28s %6d %7.2f %9.4f %9.4f %8.2f %9zu  %s\n", slash ? slash + 1 : path, problem.op_count(), budget,
                100 * plan.added_us / total, 100 * bound / total, seconds.count(), plan.repeats.size(),
                plan.peak_bytes <= limit ? "" : "does not fit");
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  RecomputeOptions options;
  std::vector<double> budgets = {0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3};
  std::printf("%-28s %6s %7s %9s %9s %8s %9s\n", "graph", "ops", "budget", "added %", "bound %", "s", "repeats");
  bool ok = true;
  for (int i = 1; i < argc; ++i) {
    if (i + 1 < argc && std::strcmp(argv[i], "--seconds") == 0) {
      options.seconds = std::atof(argv[++i]);
    } else if (i + 1 < argc && std::strcmp(argv[i], "--seed") == 0) {
      options.seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (i + 1 < argc && std::strcmp(argv[i], "--budget") == 0) {
      budgets.clear();
      for (const char* at = argv[++i]; at; at = std::strchr(at, ',')) budgets.push_back(std::atof(*at == ',' ? ++at : at));
    } else {
      Graph graph;
      ok &= read_graph(argv[i], graph);
      search(argv[i], problem_of(graph), budgets, options);
    }
  }
  return ok ? 0 : 1;
}
