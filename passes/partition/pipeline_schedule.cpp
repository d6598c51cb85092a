#include "passes/partition/pipeline_schedule.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

namespace plimsoll {

namespace {

using Kind = StageAction::Kind;

std::vector<StageAction> one_forward_one_backward(int64_t following, int64_t micro_batches) {
  std::vector<StageAction> actions{{Kind::Start, 0}};
  const int64_t ahead = std::min(following, micro_batches);
  for (int64_t i = 0; i < ahead; ++i) actions.push_back({Kind::Forward, i});
  for (int64_t i = 0; i < micro_batches; ++i) {
    if (i + ahead < micro_batches) actions.push_back({Kind::Forward, i + ahead});
    actions.push_back({Kind::Backward, i});
  }
  actions.push_back({Kind::End, 0});
  return actions;
}

// Micro-batches come in groups of as many as there are stages; a group goes through one run of the stage after the
// other. A stage is as many forwards ahead as it takes until the first micro-batch is back (Megatron-LM's order).
std::vector<StageAction> interleaved(const StageRuns& runs, int64_t stage, int64_t micro_batches) {
  const int64_t all = micro_batches * runs.per_stage, group = runs.count();
  auto nth = [&](Kind kind, int64_t n) {
    const int64_t run = n % group / runs.stages;
    return StageAction{kind, n / group * runs.stages + n % runs.stages,
                       kind == Kind::Forward ? run : runs.per_stage - 1 - run};
  };
  const int64_t ahead = std::min(2 * (runs.stages - stage - 1) + (runs.per_stage - 1) * runs.stages, all);
  std::vector<StageAction> actions{{Kind::Start}};
  for (int64_t i = 0; i < all + ahead; ++i) {
    if (i < all) actions.push_back(nth(Kind::Forward, i));
    if (i >= ahead) actions.push_back(nth(Kind::Backward, i - ahead));
  }
  actions.push_back({Kind::End});
  return actions;
}

// One stage of a V. It starts as many micro-batches in its first run as it takes until the first one is back in its
// second; then a forward, a backward and its weights follow each other in both runs by turns, so that from then on it
// keeps values of as many micro-batches as there are stages; at the end weights fill where it would wait (ZB-V, Qi et
// al. 2024, in the order of PyTorch's ScheduleZBVZeroBubble).
class VStage {
 public:
  VStage(int64_t stages, int64_t stage, int64_t micro_batches)
      : stages_(stages), stage_(stage), micro_batches_(micro_batches) {}

  std::vector<StageAction> run() {
    fill();
    while (next_[Forward][1] < next_[Forward][0] || next_[Forward][0] < rounds()) {
      if (next_[Forward][0] < rounds()) act(Forward, 0);
      act(Backward, 0), act(Weights, 0);
      act(Forward, 1), act(Backward, 1), act(Weights, 1);
    }
    drain();
    actions_.insert(actions_.begin(), {Kind::Start});
    actions_.push_back({Kind::End});
    return std::move(actions_);
  }

 private:
  enum Action : uint8_t { Forward, Backward, Weights };

  void fill() {
    for (int64_t i = 0; i < 2 * (stages_ - stage_) - 1; ++i) act(Forward, 0);
    for (int64_t i = 0; i < stage_; ++i) act(Forward, 1), act(Forward, 0);
    for (int64_t i = stage_; i < stages_; ++i) act(Forward, 1), act(Backward, 1), act(Weights, 1);
  }

  void drain() {
    for (int64_t i = 0; i < stage_; ++i) act(Backward, 0), act(Backward, 1);
    for (int64_t i = stage_; i < stages_; ++i) act(Backward, 0), act(Weights, 0);
    while (next_[Weights][1] < next_[Backward][1]) act(Weights, 1);
    while (next_[Weights][0] < next_[Backward][0]) act(Weights, 0);
  }

  // Fewer micro-batches than fill a V are in the order of as many as do, without those that are missing.
  int64_t rounds() const { return std::max(2 * stages_ - 1, micro_batches_); }

  void act(Action action, int64_t run) {
    constexpr Kind kinds[] = {Kind::Forward, Kind::Backward, Kind::Weights};
    const int64_t micro_batch = next_[action][run]++;
    if (micro_batch < micro_batches_) actions_.push_back({kinds[action], micro_batch, run});
  }

  int64_t stages_, stage_, micro_batches_;
  int64_t next_[3][2] = {};  // by action and run: its next micro-batch
  std::vector<StageAction> actions_;
};

// Stages act as soon as they can: backward first; then forward, as far ahead of backward as stages follow, while values
// of fewer micro-batches are kept than there are stages; and weights while there is nothing else, or no room.
class ZeroBubble {
 public:
  ZeroBubble(llvm::ArrayRef<StageTimes> stages, int64_t micro_batches)
      : times_(stages), micro_batches_(micro_batches), stages_(stages.size()) {}

  std::vector<std::vector<StageAction>> run() {
    while (std::optional<size_t> stage = next_to_act()) act(*stage);
    std::vector<std::vector<StageAction>> actions;
    for (Stage& stage : stages_) {
      stage.actions.insert(stage.actions.begin(), {Kind::Start, 0});
      stage.actions.push_back({Kind::End, 0});
      actions.push_back(std::move(stage.actions));
    }
    return actions;
  }

 private:
  struct Stage {
    std::vector<StageAction> actions;
    std::vector<double> forward_end_us, backward_end_us;  // by micro-batch
    int64_t weights = 0;                                  // micro-batches that are through
    double now_us = 0;
  };
  struct Choice {
    Kind kind;
    double start_us;
  };

  static constexpr double never = std::numeric_limits<double>::infinity();

  double forward_from_us(size_t s) const {
    const size_t next = stages_[s].forward_end_us.size();
    const size_t ahead = next - stages_[s].backward_end_us.size();
    const int64_t kept = static_cast<int64_t>(next) - stages_[s].weights;
    if (static_cast<int64_t>(next) == micro_batches_ || ahead >= stages_.size() - s ||
        kept >= static_cast<int64_t>(stages_.size()))
      return never;
    if (s == 0) return 0;
    return next < stages_[s - 1].forward_end_us.size() ? stages_[s - 1].forward_end_us[next] : never;
  }

  double backward_from_us(size_t s) const {
    const auto next = stages_[s].backward_end_us.size();
    if (next >= stages_[s].forward_end_us.size()) return never;
    if (s + 1 == stages_.size()) return 0;
    return next < stages_[s + 1].backward_end_us.size() ? stages_[s + 1].backward_end_us[next] : never;
  }

  // What the stage does next; it starts never if it has to wait for a stage that has not acted yet.
  Choice choice_of(size_t s) const {
    const Stage& stage = stages_[s];
    const double backward = backward_from_us(s), forward = forward_from_us(s);
    if (backward <= stage.now_us) return {Kind::Backward, stage.now_us};
    if (forward <= stage.now_us) return {Kind::Forward, stage.now_us};
    // To wait for half as long as the weights take costs less than to come later by the other half.
    const bool has_time = std::min(backward, forward) - stage.now_us > times_[s].weights_us / 2;
    if (has_time && stage.weights < static_cast<int64_t>(stage.backward_end_us.size()))
      return {Kind::Weights, stage.now_us};
    return backward <= forward ? Choice{Kind::Backward, backward} : Choice{Kind::Forward, forward};
  }

  // The stage that acts earliest, so that what others do later cannot change its choice.
  std::optional<size_t> next_to_act() const {
    std::optional<size_t> first;
    double first_us = never;
    for (size_t s = 0; s < stages_.size(); ++s)
      if (const double us = choice_of(s).start_us; us < first_us) first = s, first_us = us;
    return first;
  }

  void act(size_t s) {
    Stage& stage = stages_[s];
    const Choice choice = choice_of(s);
    const StageTimes& times = times_[s];
    const double us = choice.kind == Kind::Forward    ? times.forward_us
                      : choice.kind == Kind::Backward ? times.backward_us
                                                      : times.weights_us;
    stage.now_us = choice.start_us + us;
    if (choice.kind == Kind::Weights) return stage.actions.push_back({choice.kind, stage.weights++});
    std::vector<double>& ends = choice.kind == Kind::Forward ? stage.forward_end_us : stage.backward_end_us;
    stage.actions.push_back({choice.kind, static_cast<int64_t>(ends.size())});
    ends.push_back(stage.now_us);
  }

  llvm::ArrayRef<StageTimes> times_;
  int64_t micro_batches_;
  std::vector<Stage> stages_;
};

}  // namespace

std::string name_of(const StageRuns& runs) {
  const std::string name = schedule_names[static_cast<size_t>(runs.schedule)].str();
  return runs.schedule == PipelineSchedule::Interleaved ? name + " in " + std::to_string(runs.per_stage) + " runs"
                                                        : name;
}

StageRuns runs_named(llvm::StringRef name, int64_t stages) {
  const auto [schedule, rest] = name.split(' ');
  const auto* found = llvm::find(schedule_names, schedule);
  int64_t per_stage = 0;
  (void)rest.split(' ').second.split(' ').first.getAsInteger(10, per_stage);
  return runs_of_schedule(static_cast<PipelineSchedule>(found - std::begin(schedule_names)), stages, per_stage);
}

StageRuns runs_of_schedule(PipelineSchedule schedule, int64_t stages, int64_t per_stage) {
  switch (schedule) {
    case PipelineSchedule::Interleaved: return {schedule, stages, per_stage > 0 ? per_stage : 2};
    case PipelineSchedule::V: return {schedule, stages, 2};
    default: return {schedule, stages, 1};
  }
}

std::vector<std::vector<StageAction>> actions_of_stages(const StageRuns& runs, llvm::ArrayRef<StageTimes> stages,
                                                        int64_t micro_batches) {
  if (runs.schedule == PipelineSchedule::ZeroBubble) return ZeroBubble(stages, micro_batches).run();
  std::vector<std::vector<StageAction>> actions;
  for (int64_t stage = 0; stage < runs.stages; ++stage) switch (runs.schedule) {
      case PipelineSchedule::Interleaved: actions.push_back(interleaved(runs, stage, micro_batches)); break;
      case PipelineSchedule::V: actions.push_back(VStage(runs.stages, stage, micro_batches).run()); break;
      default: actions.push_back(one_forward_one_backward(runs.stages - 1 - stage, micro_batches));
    }
  return actions;
}

int64_t most_kept(llvm::ArrayRef<StageAction> actions, int64_t run) {
  const bool splits_backward =
      llvm::any_of(actions, [](const StageAction& each) { return each.kind == Kind::Weights; });
  const Kind last = splits_backward ? Kind::Weights : Kind::Backward;
  int64_t kept = 0, most = 0;
  for (const StageAction& action : actions) {
    if (action.run == run) kept += (action.kind == Kind::Forward) - (action.kind == last);
    most = std::max(most, kept);
  }
  return most;
}

Result<std::vector<size_t>> order_of_transfers(llvm::ArrayRef<std::vector<double>> us,
                                               llvm::ArrayRef<StageTransfer> transfers) {
  std::vector<std::vector<double>> end_us(us.size());  // of the actions that have run
  auto is_made = [&](const StageTransfer& t) { return t.from_action < end_us[t.from].size(); };
  auto made_us = [&](const StageTransfer& t) { return end_us[t.from][t.from_action]; };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t stage = 0; stage < us.size(); ++stage)
      while (end_us[stage].size() < us[stage].size()) {
        const size_t action = end_us[stage].size();
        double start = action == 0 ? 0 : end_us[stage].back();
        bool waits = false;
        for (const StageTransfer& t : transfers) {
          if (t.to != stage || t.to_action != action) continue;
          waits |= !is_made(t);
          if (is_made(t)) start = std::max(start, made_us(t));
        }
        if (waits) break;
        end_us[stage].push_back(start + us[stage][action]);
        moved = true;
      }
  }
  for (size_t stage = 0; stage < us.size(); ++stage)
    if (end_us[stage].size() < us[stage].size())
      return model_error("the schedule has stage " + llvm::Twine(stage) + " wait for ever");
  std::vector<size_t> order(transfers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(made_us(transfers[a]), transfers[a].from) < std::pair(made_us(transfers[b]), transfers[b].from);
  });
  return order;
}

}  // namespace plimsoll
