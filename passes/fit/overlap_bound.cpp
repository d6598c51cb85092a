#include "passes/fit/overlap.h"

#include "passes/fit/copy_windows.h"

#include <algorithm>
#include <array>
#include <queue>

// Each copy can start once the compute ahead of it is done, and some compute is left once it is through. A channel that may interrupt
// copies and always serves the one with most compute left after it ends earliest (Jackson's preemptive schedule, Carlier 1982).
// Ops that are added to a sequence only make both longer.

namespace plimsoll {
namespace {

using namespace fit;

struct Job {
  double from_us, takes_us, left_us;  // left: compute after it
};

// When the last is through and the compute after it.
double preemptive_us(std::vector<Job> jobs) {
  std::stable_sort(jobs.begin(), jobs.end(), [](const Job& a, const Job& b) { return a.from_us < b.from_us; });
  std::priority_queue<std::pair<double, double>> waiting;  // what is left after it, what it still takes
  double now_us = 0, end_us = 0;
  for (size_t next = 0; next < jobs.size() || !waiting.empty();) {
    if (waiting.empty()) now_us = std::max(now_us, jobs[next].from_us);
    for (; next < jobs.size() && jobs[next].from_us <= now_us; ++next) waiting.push({jobs[next].left_us, jobs[next].takes_us});
    auto [left_us, takes_us] = waiting.top();
    waiting.pop();
    const double until_us = next < jobs.size() ? std::min(now_us + takes_us, jobs[next].from_us) : now_us + takes_us;
    if (until_us < now_us + takes_us)
      waiting.push({left_us, takes_us - (until_us - now_us)});
    else
      end_us = std::max(end_us, until_us + left_us);
    now_us = until_us;
  }
  return end_us;
}

}  // namespace

double least_total_us(const RecomputeProblem& problem) {
  const ChannelWork work(problem);
  std::vector<double> clock_us(1, 0);  // by op, and for the end: compute ahead of it
  for (double us : work.compute_us) clock_us.push_back(clock_us.back() + us);
  const CopyWindows tight(problem);
  std::vector<double> through_us;      // by copy, at the earliest
  std::array<std::vector<Job>, 3> jobs;  // by channel
  for (size_t c = 0; c < work.copies.size(); ++c) {
    const ChannelWork::Copy& copy = work.copies[c];
    const CopyWindow& window = tight.windows()[c];
    const bool to_host = copy.channel == Channel::ToHost;
    double from_us = clock_us[static_cast<size_t>(to_host ? copy.op : tight.earliest_issue(c))];
    for (int32_t earlier : copy.after) from_us = std::max(from_us, through_us[static_cast<size_t>(earlier)]);
    through_us.push_back(from_us + copy.cost_us);
    jobs[static_cast<size_t>(copy.channel)].push_back({from_us, copy.cost_us, to_host ? 0 : clock_us.back() - clock_us[static_cast<size_t>(window.done)]});
  }
  double least_us = clock_us.back();
  for (std::vector<Job>& channel : jobs) least_us = std::max(least_us, preemptive_us(std::move(channel)));
  return least_us;
}

}  // namespace plimsoll
