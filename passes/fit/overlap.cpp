#include "passes/fit/overlap.h"

#include <algorithm>
#include <array>

// Every copy starts with the shortest window there is.

namespace plimsoll {
namespace {

std::vector<int32_t> producers(const RecomputeProblem& problem) {
  std::vector<int32_t> result(problem.value_bytes.size(), -1);
  for (int32_t o = 0; o < problem.op_count(); ++o)
    for (int32_t v : problem.ops[static_cast<size_t>(o)].writes) result[static_cast<size_t>(v)] = o;
  return result;
}

// As short as can be.
std::vector<CopyWindow> tight_windows(const RecomputeProblem& problem) {
  int32_t n = problem.op_count();
  std::vector<int32_t> first_read(problem.value_bytes.size(), n);
  std::vector<CopyWindow> windows;
  for (int32_t o = n - 1; o >= 0; --o) {
    const RecomputeOp& op = problem.ops[static_cast<size_t>(o)];
    if (op.channel == Channel::ToHost) windows.push_back({o, o, o + 1});
    if (op.channel == Channel::ToDevice) {
      int32_t done = std::max(o + 1, std::min(n, op.repeat_until));
      for (int32_t v : op.writes) done = std::min(done, first_read[static_cast<size_t>(v)]);
      windows.push_back({o, o, done});
    }
    for (int32_t v : op.reads) first_read[static_cast<size_t>(v)] = o;
  }
  std::reverse(windows.begin(), windows.end());
  return windows;
}

}  // namespace

double simulate(const RecomputeProblem& problem, llvm::ArrayRef<CopyWindow> windows) {
  std::vector<CopyWindow> waits = windows.vec(), issues = windows.vec();
  std::sort(waits.begin(), waits.end(), [](const CopyWindow& a, const CopyWindow& b) { return a.done < b.done; });
  std::sort(issues.begin(), issues.end(), [](const CopyWindow& a, const CopyWindow& b) {
    return a.issue != b.issue ? a.issue < b.issue : a.op < b.op;
  });
  std::vector<int32_t> producer = producers(problem);
  std::vector<double> finish(problem.ops.size(), 0);
  std::array<double, 3> through{};  // by channel
  double& clock = through[static_cast<size_t>(Channel::Compute)];
  auto wait = waits.begin(), issue = issues.begin();
  for (int32_t o = 0; o <= problem.op_count(); ++o) {
    for (; wait != waits.end() && wait->done == o; ++wait) clock = std::max(clock, finish[static_cast<size_t>(wait->op)]);
    for (; issue != issues.end() && issue->issue == o; ++issue) {
      const RecomputeOp& copy = problem.ops[static_cast<size_t>(issue->op)];
      double& channel = through[static_cast<size_t>(copy.channel)];
      channel = std::max(channel, clock);
      for (int32_t v : copy.reads)
        if (int32_t from = producer[static_cast<size_t>(v)]; from >= 0) channel = std::max(channel, finish[static_cast<size_t>(from)]);
      channel += copy.cost_us;
      finish[static_cast<size_t>(issue->op)] = channel;
    }
    if (o < problem.op_count() && problem.ops[static_cast<size_t>(o)].channel == Channel::Compute)
      clock += problem.ops[static_cast<size_t>(o)].cost_us;
  }
  return *std::max_element(through.begin(), through.end());
}

Overlap overlap_copies(const RecomputeProblem& problem, int64_t) {
  Overlap result;
  result.windows = tight_windows(problem);
  result.total_us = simulate(problem, result.windows);
  result.stalled_us = result.total_us;
  for (const RecomputeOp& op : problem.ops)
    if (op.channel == Channel::Compute) result.stalled_us -= op.cost_us;
  result.peak_bytes = measure_repeats(problem, {}).peak_bytes;
  return result;
}

}  // namespace plimsoll
