#include "passes/partition/pipeline_schedule.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace plimsoll {
namespace {

// How long stages take that act in this order, where an action waits for what it reads of another run.
double makespan(const StageRuns& runs, llvm::ArrayRef<std::vector<StageAction>> stages, int64_t micro_batches,
                const StageTimes& times) {
  using Kind = StageAction::Kind;
  std::map<std::tuple<int64_t, Kind, int64_t>, double> end;  // by run, kind and micro-batch
  std::vector<size_t> next(stages.size(), 0);
  std::vector<double> now(stages.size(), 0);
  auto run_of = [&](int64_t stage, int64_t place) {
    int64_t run = place * runs.stages;
    while (runs.stage_of(run) != stage) ++run;
    return run;
  };
  // What the action reads last, none for the first forward.
  auto awaited = [&](int64_t run, const StageAction& action) -> std::optional<std::tuple<int64_t, Kind, int64_t>> {
    if (action.kind == Kind::Weights) return {{run, Kind::Backward, action.micro_batch}};
    if (action.kind == Kind::Backward && run + 1 < runs.count()) return {{run + 1, Kind::Backward, action.micro_batch}};
    if (action.kind == Kind::Backward) return {{run, Kind::Forward, action.micro_batch}};
    if (run == 0) return std::nullopt;
    return {{run - 1, Kind::Forward, action.micro_batch}};
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t s = 0; s < stages.size(); ++s)
      for (; next[s] < stages[s].size(); ++next[s], moved = true) {
        const StageAction& action = stages[s][next[s]];
        if (action.kind == Kind::Start || action.kind == Kind::End) continue;
        const int64_t run = run_of(static_cast<int64_t>(s), action.run);
        const auto before = awaited(run, action);
        if (before && !end.count(*before)) break;
        now[s] = std::max(now[s], before ? end.at(*before) : 0);
        now[s] += action.kind == Kind::Forward    ? times.forward_us
                  : action.kind == Kind::Backward ? times.backward_us
                                                  : times.weights_us;
        CHECK(end.try_emplace({run, action.kind, action.micro_batch}, now[s]).second);
      }
  }
  const int64_t kinds = splits_backward(runs.schedule) ? 3 : 2;
  CHECK(static_cast<int64_t>(end.size()) == kinds * runs.count() * micro_batches);
  return *std::max_element(now.begin(), now.end());
}

// The largest number of micro-batches whose values a stage keeps, once for each of its runs.
int64_t most_runs_kept(PipelineSchedule schedule, llvm::ArrayRef<StageAction> actions) {
  using Kind = StageAction::Kind;
  int64_t kept = 0, most = 0;
  for (const StageAction& action : actions) {
    kept +=
        (action.kind == Kind::Forward) - (action.kind == (splits_backward(schedule) ? Kind::Weights : Kind::Backward));
    most = std::max(most, kept);
  }
  CHECK(kept == 0);
  return most;
}

TEST_SUITE("unit") {
  TEST_CASE("actions of all schedules are in an order that can run, and wait and keep as published") {
    using Schedule = PipelineSchedule;
    for (int64_t stages : {2, 3, 4, 8})
      for (int64_t rounds : {1, 2, 5}) {
        CAPTURE(stages);
        CAPTURE(rounds);
        const int64_t micro_batches = rounds * stages;
        const auto following = static_cast<double>(stages - 1);
        auto waits = [&](const StageRuns& runs, const StageTimes& times) {
          const std::vector<StageTimes> all(static_cast<size_t>(stages), times);
          const auto actions = actions_of_stages(runs, all, micro_batches);
          const double work = static_cast<double>(runs.per_stage * micro_batches) *
                              (times.forward_us + times.backward_us + times.weights_us);
          return makespan(runs, actions, micro_batches, times) - work;
        };
        CHECK(waits({Schedule::OneForwardOneBackward, stages}, {1, 2, 0}) == 3 * following);
        for (int64_t per_stage : {2, 3, 4})
          CHECK(waits({Schedule::Interleaved, stages, per_stage}, {1, 2, 0}) == 3 * following);
        // The closed form, and what a greedy order loses.
        CHECK(waits({Schedule::ZeroBubble, stages}, {1, 1, 1}) <= following + 2);
        if (rounds > 1) CHECK(waits({Schedule::V, stages, 2}, {1, 1, 1}) == following);
        const std::vector<StageTimes> times(static_cast<size_t>(stages), {1, 1, 1});
        auto kept = [&](const StageRuns& runs, int64_t stage) {
          return most_runs_kept(runs.schedule,
                                actions_of_stages(runs, times, micro_batches)[static_cast<size_t>(stage)]);
        };
        for (int64_t stage = 0; stage < stages; ++stage) {
          CHECK(kept({Schedule::OneForwardOneBackward, stages}, stage) == stages - stage);
          CHECK(kept({Schedule::ZeroBubble, stages}, stage) <= stages);
          const int64_t interleaved = 2 * (stages - stage - 1) + stages + 1;
          CHECK(kept({Schedule::Interleaved, stages, 2}, stage) == std::min(interleaved, 2 * micro_batches));
          if (rounds > 1) CHECK(kept({Schedule::V, stages, 2}, stage) == 2 * stages);
        }
      }
  }

  TEST_CASE("a V with fewer micro-batches than fill it runs") {
    for (int64_t stages : {2, 5})
      for (int64_t micro_batches = 1; micro_batches < 2 * stages; ++micro_batches) {
        const StageRuns runs{PipelineSchedule::V, stages, 2};
        makespan(runs, actions_of_stages(runs, {}, micro_batches), micro_batches, {1, 1, 1});
      }
  }
}

}  // namespace
}  // namespace plimsoll
