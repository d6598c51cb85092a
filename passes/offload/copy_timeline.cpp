#include "passes/offload/copy_intervals.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace plimsoll::remat {

EngineWork::EngineWork(const RematProblem& problem)
    : shares(problem.duplex_shares), interference(problem.copy_interference), collectives(problem.collective_shares) {
  std::vector<int32_t> written_by(problem.value_bytes.size(), -1);  // by value: a copy
  for (int32_t o = 0; o < problem.op_count(); ++o) {
    const RematOp& op = problem.ops[o];
    computes.push_back(op.computes());
    compute_us.push_back(op.computes() ? op.cost_us : 0);
    if (op.computes()) continue;
    const int32_t index = static_cast<int32_t>(copies.size());
    Copy copy{o, op.engine, op.cost_us, 0, {}, {}};
    if (op.is_collective()) copy.engine = Engine::Ranks, copy.cost_us = op.link_us, copy.kind = op.kind;
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

// While computing loses time to a copy, a collective has the link for itself.
double EngineWork::total_compute_us() const {
  double lost_us = 0, link_us = 0;
  for (const Copy& copy : copies)
    if (copy.engine == Engine::Ranks)
      link_us += std::max(0.0, copy.cost_us - collectives.launch_us);
    else
      lost_us += interference.us(copy.cost_us);
  const double computed_us = std::accumulate(compute_us.begin(), compute_us.end(), 0.0);
  return computed_us + lost_us + std::max(0.0, link_us - lost_us) * collectives.min_cost();
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
  clock.restart(work.shares, work.interference, work.collectives);
  constexpr int32_t none = -1;
  int32_t launched = none;  // the kind of collective that was issued last, while nothing else happened since
  for (size_t o = 0; o <= end; ++o) {
    if (line.first_wait[o] >= 0) launched = none;
    line.arrive_us[o] = clock.now_us();
    for (int32_t w = line.first_wait[o]; w >= 0; w = line.next_wait[w])
      clock.wait_for(work.copies[w].engine, line.places[w]);
    line.leave_us[o] = clock.now_us();
    for (int32_t w = line.first_issue[o]; w >= 0; w = line.next_issue[w]) {
      const EngineWork::Copy& copy = work.copies[w];
      const bool collective = copy.engine == Engine::Ranks;
      line.places[w] = collective ? clock.issue_collective(copy.cost_us, copy.kind == launched)
                                  : clock.issue(copy.engine, copy.cost_us);
      launched = collective ? copy.kind : none;
    }
    if (o == end || !work.computes[o]) continue;
    clock.compute(work.compute_us[o]);
    launched = none;
  }
  line.total_us = clock.through_us();
  line.start_us.resize(intervals.size());
  line.finish_us.resize(intervals.size());
  line.through_us.resize(intervals.size());
  for (size_t w = 0; w < intervals.size(); ++w) {
    line.finish_us[w] = clock.finish_us(work.copies[w].engine, line.places[w]);
    line.start_us[w] = clock.start_us(work.copies[w].engine, line.places[w]);
    line.through_us[w] = clock.launch_finish_us(work.copies[w].engine, line.places[w]);
  }
}

}  // namespace plimsoll::remat
