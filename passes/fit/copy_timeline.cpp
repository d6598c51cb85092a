#include "passes/fit/copy_timeline.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace plimsoll {
namespace fit {
namespace {

template <typename Key>
std::vector<int32_t> sorted_by(llvm::ArrayRef<CopyWindow> windows, Key key) {
  std::vector<int32_t> order(windows.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return key(windows[static_cast<size_t>(a)]) < key(windows[static_cast<size_t>(b)]); });
  return order;
}

}  // namespace

CopyTimeline run_channels(const RecomputeProblem& problem, llvm::ArrayRef<CopyWindow> windows) {
  const size_t end = problem.ops.size();
  CopyTimeline line{std::vector<double>(end + 1), std::vector<double>(end + 1), std::vector<double>(windows.size()), std::vector<double>(windows.size())};
  std::vector<double> copied_us(problem.value_bytes.size(), 0);  // by value: when the copy that writes it is done
  std::vector<int32_t> waits = sorted_by(windows, [](const CopyWindow& w) { return std::pair(w.done, w.op); });
  std::vector<int32_t> issues = sorted_by(windows, [](const CopyWindow& w) { return std::pair(w.issue, w.op); });
  std::array<double, 3> through{};  // by channel
  double& clock = through[static_cast<size_t>(Channel::Compute)];
  auto wait = waits.begin(), issue = issues.begin();
  for (size_t o = 0; o <= end; ++o) {
    line.arrive_us[o] = clock;
    for (; wait != waits.end() && static_cast<size_t>(windows[static_cast<size_t>(*wait)].done) == o; ++wait)
      clock = std::max(clock, line.finish_us[static_cast<size_t>(*wait)]);
    line.leave_us[o] = clock;
    for (; issue != issues.end() && static_cast<size_t>(windows[static_cast<size_t>(*issue)].issue) == o; ++issue) {
      const size_t w = static_cast<size_t>(*issue);
      const RecomputeOp& copy = problem.ops[static_cast<size_t>(windows[w].op)];
      double& channel = through[static_cast<size_t>(copy.channel)];
      channel = std::max(channel, clock);
      for (int32_t v : copy.reads) channel = std::max(channel, copied_us[static_cast<size_t>(v)]);
      line.start_us[w] = channel;
      channel += copy.cost_us;
      line.finish_us[w] = channel;
      for (int32_t v : copy.writes) copied_us[static_cast<size_t>(v)] = channel;
    }
    if (o < end && problem.ops[o].channel == Channel::Compute) clock += problem.ops[o].cost_us;
  }
  line.total_us = *std::max_element(through.begin(), through.end());
  return line;
}

}  // namespace fit

double simulate(const RecomputeProblem& problem, llvm::ArrayRef<CopyWindow> windows) { return fit::run_channels(problem, windows).total_us; }

}  // namespace plimsoll
