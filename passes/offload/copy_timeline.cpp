#include "passes/offload/copy_intervals.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace plimsoll::remat {

EngineWork::EngineWork(const RematProblem& problem)
    : shares(problem.duplex_shares), interference(problem.copy_interference) {
  std::vector<int32_t> written_by(problem.value_bytes.size(), -1);  // by value: a copy
  for (int32_t o = 0; o < problem.op_count(); ++o) {
    const RematOp& op = problem.ops[o];
    const bool computes = op.engine == Engine::Compute;
    compute_us.push_back(computes ? op.cost_us : 0);
    if (computes) continue;
    const int32_t index = static_cast<int32_t>(copies.size());
    Copy copy{o, op.engine, op.cost_us, {}, {}};
    for (int32_t v : op.reads) {
      const int32_t earlier = written_by[v];
      if (earlier < 0) continue;
      copy.after.push_back(earlier);
      copies[earlier].before.push_back(index);
    }
    for (int32_t v : op.writes) written_by[v] = index;
    copies.push_back(std::move(copy));
  }
}

double EngineWork::total_compute_us() const {
  double total_us = 0;
  for (const Copy& copy : copies) total_us += interference.us(copy.cost_us);
  return std::accumulate(compute_us.begin(), compute_us.end(), total_us);
}

void run_engines(const EngineWork& work, llvm::ArrayRef<CopyInterval> intervals, CopyTimeline& line) {
  const size_t end = work.compute_us.size();
  line.first_issue.assign(end + 1, -1);
  line.first_wait.assign(end + 1, -1);
  line.next_issue.resize(intervals.size());
  line.next_wait.resize(intervals.size());
  for (size_t w = intervals.size(); w-- > 0;) {
    line.next_issue[w] = std::exchange(line.first_issue[intervals[w].issue], static_cast<int32_t>(w));
    line.next_wait[w] = std::exchange(line.first_wait[intervals[w].done], static_cast<int32_t>(w));
  }
  line.arrive_us.resize(end + 1);
  line.leave_us.resize(end + 1);
  line.places.resize(intervals.size());
  EngineClock& clock = line.clock;
  clock.restart(work.shares, work.interference);
  for (size_t o = 0; o <= end; ++o) {
    line.arrive_us[o] = clock.now_us();
    for (int32_t w = line.first_wait[o]; w >= 0; w = line.next_wait[w])
      clock.wait_for(work.copies[w].engine, line.places[w]);
    line.leave_us[o] = clock.now_us();
    for (int32_t w = line.first_issue[o]; w >= 0; w = line.next_issue[w]) {
      const EngineWork::Copy& copy = work.copies[w];
      line.places[w] = clock.issue(copy.engine, copy.cost_us);
    }
    if (o < end) clock.compute(work.compute_us[o]);
  }
  line.total_us = clock.through_us();
  line.start_us.resize(intervals.size());
  line.finish_us.resize(intervals.size());
  for (size_t w = 0; w < intervals.size(); ++w) {
    line.finish_us[w] = clock.finish_us(work.copies[w].engine, line.places[w]);
    line.start_us[w] = clock.start_us(work.copies[w].engine, line.places[w]);
  }
}

}  // namespace plimsoll::remat
