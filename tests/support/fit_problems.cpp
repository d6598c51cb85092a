#include "tests/support/fit_problems.h"

#include "passes/offload/copy_intervals.h"

#include <algorithm>

namespace plimsoll {

int pick(std::mt19937& random, int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); }

RematProblem random_problem(std::mt19937& random, int ops) {
  RematProblem problem;
  auto new_value = [&](int64_t bytes) {
    problem.value_bytes.push_back(bytes);
    problem.live_out.push_back(pick(random, 12) == 0);
    return static_cast<int32_t>(problem.value_bytes.size() - 1);
  };
  new_value(4);  // an input
  for (int o = 0; o < ops; ++o) {
    RematOp op;
    op.cost_us = 1 + pick(random, 9);
    op.workspace_bytes = pick(random, 4) == 0 ? pick(random, 6) : 0;
    op.repeatable = pick(random, 8) != 0;
    if (pick(random, 8) == 0) op.remat_until = o + pick(random, ops);
    std::set<int32_t> reads;
    int values = static_cast<int>(problem.value_bytes.size());
    for (int i = pick(random, 3); i >= 0; --i) reads.insert(pick(random, 2) == 0 ? values - 1 : pick(random, values));
    op.reads.assign(reads.begin(), reads.end());
    bool in_place = pick(random, 3) == 0;
    int32_t over = op.reads[0];
    op.writes.push_back(new_value(in_place ? problem.value_bytes[static_cast<size_t>(over)] : 1 + pick(random, 9)));
    if (in_place) op.in_place.push_back({op.writes[0], over});
    if (pick(random, 4) == 0) op.writes.push_back(new_value(1 + pick(random, 9)));
    problem.ops.push_back(op);
  }
  return problem;
}

RematProblem tangled_problem(std::mt19937& random, int ops) {
  RematProblem problem;
  for (int o = 0; o < ops; ++o) {
    RematOp op;
    op.cost_us = 1 + pick(random, 20);
    std::set<int32_t> reads;
    for (int i = 0; i < 3 && o > 0; ++i) reads.insert(std::max(0, o - 1 - pick(random, 20)));
    op.reads.assign(reads.begin(), reads.end());
    op.writes.push_back(o);
    problem.ops.push_back(op);
    problem.value_bytes.push_back(1 + pick(random, 100));
    problem.live_out.push_back(o == ops - 1);
  }
  return problem;
}

void add_offloads(std::mt19937& random, RematProblem& problem) {
  for (const RematOp& op : problem.ops)
    for (int32_t v : op.writes)
      if (pick(random, 2) == 0) problem.offloads.push_back({v, 1.0 + pick(random, 9), 1.0 + pick(random, 9)});
  std::shuffle(problem.offloads.begin(), problem.offloads.end(), random);
}

Extras extras_of(llvm::ArrayRef<Remat> remats) {
  Extras result;
  for (const Remat& remat : remats) result.insert({remat.before, remat.op});
  return result;
}

Extras extras_of(llvm::ArrayRef<Reload> reloads) {
  Extras result;
  for (const Reload& reload : reloads) result.insert({reload.before, reload.value});
  return result;
}

RematProblem with_extras(const RematProblem& problem, const Extras& remats, const Extras& reloads) {
  RematPlan plan;
  for (auto [before, op] : remats) plan.remats.push_back({before, op});
  for (auto [before, value] : reloads) plan.reloads.push_back({before, value});
  return apply_to_problem(problem, plan);
}

int64_t plain_peak(const RematProblem& problem, llvm::ArrayRef<CopyInterval> intervals) {
  struct Life {
    int first = 0, last = -1, held = -1;
  };  // held: last position at which a copy reads the value
  const int end = problem.op_count();
  std::vector<Life> lives(problem.value_bytes.size());
  auto life = [&](int32_t v) -> Life& { return lives[static_cast<size_t>(v)]; };
  for (int o = 0; o < end; ++o) {
    const RematOp& op = problem.ops[static_cast<size_t>(o)];
    for (int32_t v : op.writes) life(v) = {o, o, -1};
    for (int32_t v : op.reads) life(v).last = o;
  }
  for (size_t v = 0; v < lives.size(); ++v)
    if (problem.live_out[v]) lives[v].last = end;
  for (const CopyInterval& interval : intervals) {
    const RematOp& op = problem.ops[static_cast<size_t>(interval.op)];
    auto is_reused = [&](int32_t v) {
      return life(v).last == interval.op &&
             llvm::any_of(op.in_place, [&](const InPlaceReuse& pair) { return pair.read == v; });
    };
    if (op.engine == Engine::ToDevice || op.is_collective())
      for (int32_t v : op.writes) life(v).first = interval.issue;
    if (op.engine == Engine::ToHost || op.is_collective())
      for (int32_t v : op.reads)
        if (!is_reused(v)) life(v).held = std::max(life(v).held, interval.done - 1);
  }
  int64_t peak = 0;
  for (int o = 0; o <= end; ++o) {
    const bool computes = o < end && problem.ops[static_cast<size_t>(o)].computes();
    int64_t live = computes || (o < end && intervals.empty()) ? problem.ops[static_cast<size_t>(o)].workspace_bytes : 0;
    for (const CopyInterval& interval : intervals)
      if (interval.issue <= o && o < interval.done)
        live += problem.ops[static_cast<size_t>(interval.op)].workspace_bytes;
    for (size_t v = 0; v < lives.size(); ++v)
      if (lives[v].first <= o && o <= std::max(lives[v].last, lives[v].held)) live += problem.value_bytes[v];
    if (o < end)
      for (const InPlaceReuse& pair : problem.ops[static_cast<size_t>(o)].in_place)
        if (life(pair.read).last == o && life(pair.read).held < o)
          live -= problem.value_bytes[static_cast<size_t>(pair.written)];
    peak = std::max(peak, live);
  }
  return peak;
}

double total_us(const RematProblem& problem, llvm::ArrayRef<CopyInterval> intervals) {
  remat::CopyTimeline line;
  remat::run_engines(remat::EngineWork(problem), intervals, line);
  return line.total_us;
}

Overlap overlap_within(const RematProblem& problem, int64_t limit_bytes) {
  return overlap_levels(problem, limit_bytes).back();
}

RematPlan plan_within(const RematProblem& problem, int64_t limit_bytes, const RematOptions& options) {
  return remat_levels(problem, limit_bytes, options).front();
}

}  // namespace plimsoll
