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

std::vector<std::vector<StageAction>> actions_of_stages(PipelineSchedule schedule, llvm::ArrayRef<StageTimes> stages,
                                                        int64_t micro_batches) {
  if (schedule == PipelineSchedule::ZeroBubble) return ZeroBubble(stages, micro_batches).run();
  std::vector<std::vector<StageAction>> actions;
  for (size_t stage = 0; stage < stages.size(); ++stage)
    actions.push_back(one_forward_one_backward(static_cast<int64_t>(stages.size() - 1 - stage), micro_batches));
  return actions;
}

int64_t most_kept(llvm::ArrayRef<StageAction> actions) {
  const bool splits_backward =
      llvm::any_of(actions, [](const StageAction& each) { return each.kind == Kind::Weights; });
  const Kind last = splits_backward ? Kind::Weights : Kind::Backward;
  int64_t kept = 0, most = 0;
  for (const StageAction& action : actions) {
    kept += (action.kind == Kind::Forward) - (action.kind == last);
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
