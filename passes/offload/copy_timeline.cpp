#include "passes/offload/copy_timeline.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace plimsoll {
namespace fit {

ChannelWork::ChannelWork(const RecomputeProblem& problem) : shares(problem.copy_shares) {
  std::vector<int32_t> written_by(problem.value_bytes.size(), -1);  // by value: a copy
  for (int32_t o = 0; o < problem.op_count(); ++o) {
    const RecomputeOp& op = problem.ops[static_cast<size_t>(o)];
    const bool computes = op.channel == Channel::Compute;
    compute_us.push_back(computes ? op.cost_us : 0);
    if (computes) continue;
    const int32_t index = static_cast<int32_t>(copies.size());
    Copy copy{o, op.channel, op.cost_us, problem.compute_us(op), {}, {}};
    for (int32_t v : op.reads) {
      const int32_t earlier = written_by[static_cast<size_t>(v)];
      if (earlier < 0) continue;
      copy.after.push_back(earlier);
      copies[static_cast<size_t>(earlier)].before.push_back(index);
    }
    for (int32_t v : op.writes) written_by[static_cast<size_t>(v)] = index;
    copies.push_back(std::move(copy));
  }
}

double ChannelWork::total_compute_us() const {
  const double tolls_us = std::accumulate(copies.begin(), copies.end(), 0.0, [](double sum, const Copy& copy) { return sum + copy.toll_us; });
  return std::accumulate(compute_us.begin(), compute_us.end(), tolls_us);
}

void run_channels(const ChannelWork& work, llvm::ArrayRef<CopyWindow> windows, CopyTimeline& line) {
  const size_t end = work.compute_us.size();
  line.first_issue.assign(end + 1, -1);
  line.first_wait.assign(end + 1, -1);
  line.next_issue.resize(windows.size());
  line.next_wait.resize(windows.size());
  for (size_t w = windows.size(); w-- > 0;) {
    line.next_issue[w] = std::exchange(line.first_issue[static_cast<size_t>(windows[w].issue)], static_cast<int32_t>(w));
    line.next_wait[w] = std::exchange(line.first_wait[static_cast<size_t>(windows[w].done)], static_cast<int32_t>(w));
  }
  line.arrive_us.resize(end + 1);
  line.leave_us.resize(end + 1);
  line.places.resize(windows.size());
  line.bus.restart(work.shares);
  double clock = 0;
  for (size_t o = 0; o <= end; ++o) {
    line.arrive_us[o] = clock;
    for (int32_t w = line.first_wait[o]; w >= 0; w = line.next_wait[static_cast<size_t>(w)])
      clock = std::max(clock, line.bus.finish_us(work.copies[static_cast<size_t>(w)].channel, line.places[static_cast<size_t>(w)]));
    line.leave_us[o] = clock;
    for (int32_t w = line.first_issue[o]; w >= 0; w = line.next_issue[static_cast<size_t>(w)]) {
      const ChannelWork::Copy& copy = work.copies[static_cast<size_t>(w)];
      line.places[static_cast<size_t>(w)] = line.bus.issue(copy.channel, copy.cost_us, clock);
      clock += copy.toll_us;
    }
    if (o < end) clock += work.compute_us[o];
  }
  line.total_us = std::max(clock, line.bus.through_us());
  line.start_us.resize(windows.size());
  line.finish_us.resize(windows.size());
  for (size_t w = 0; w < windows.size(); ++w) {
    line.finish_us[w] = line.bus.finish_us(work.copies[w].channel, line.places[w]);
    line.start_us[w] = line.bus.start_us(work.copies[w].channel, line.places[w]);
  }
}

}  // namespace fit

double simulate(const RecomputeProblem& problem, llvm::ArrayRef<CopyWindow> windows) {
  fit::CopyTimeline line;
  fit::run_channels(fit::ChannelWork(problem), windows, line);
  return line.total_us;
}

}  // namespace plimsoll
