#include "passes/budget/step_of_stages.h"

#include "ir/op_def.h"
#include "ir/plan/timeline.h"
#include "passes/budget/budget_report.h"

#include <algorithm>
#include <limits>

namespace plimsoll {
namespace {

// Share of a plain plan's time that a plan with remats takes at least; its copies and collectives may be placed better.
constexpr double sure_share_of_plain = 0.99;
// Share of a stage's waiting for others, as plain plans have it, that it waits at least.
constexpr double sure_share_of_waiting = 0.9;
constexpr int hidden_tries = 5;    // each halves what is not known of the time up to which a plan is hidden
constexpr double rounding = 1e-9;  // of sums of times

// Microseconds of a step of these stages.
double step_us(llvm::ArrayRef<const Plan*> stages) {
  double us = 0;
  for (size_t f = 0; f < stages.front()->functions.size(); ++f) {
    llvm::SmallVector<StageFunction, 8> functions;
    for (const Plan* plan : stages) functions.push_back({&plan->functions[f], &plan->device});
    double slowest_us = 0;
    for (const Timeline& stage : predict_timelines(functions)) slowest_us = std::max(slowest_us, stage.total_us);
    us += static_cast<double>(stages.front()->calls_per_step(f)) * slowest_us;
  }
  return us;
}

// The plan with `us` more to compute in a step, in backward, as remats have it.
Plan stretched(Plan plan, double us) {
  double backward_us = 0;
  const auto each_of_backward = [&](llvm::function_ref<void(Instruction&, double calls)> visit) {
    for (size_t f = 0; f < plan.functions.size(); ++f)
      for (Instruction& instruction : plan.functions[f].instructions) {
        const OpDef* op = find_op(instruction.op);
        if (instruction.phase == Phase::Backward && (!op || op->engine == Engine::Compute))
          visit(instruction, static_cast<double>(plan.calls_per_step(f)));
      }
  };
  each_of_backward([&](Instruction& instruction, double calls) { backward_us += calls * instruction.predicted_us; });
  const double factor = 1 + us / std::max(backward_us, 1e-9);
  each_of_backward([&](Instruction& instruction, double) { instruction.predicted_us *= factor; });
  return plan;
}

}  // namespace

StepOfStages::StepOfStages(std::vector<const Plan*> plain, llvm::ArrayRef<size_t> order, double enough_us)
    : plain_(std::move(plain)),
      known_(plain_),
      in_order_(plain_),
      order_(order),
      noted_(plain_.size(), nullptr),
      enough_us_(enough_us),
      us_(step_us(plain_)) {}

void StepOfStages::add(size_t stage, const Plan& plan) {
  const std::lock_guard<std::mutex> lock(mutex_);
  noted_[stage] = &plan;
  if (stage == order_.front()) {
    known_[stage] = &plan;
    us_ = step_us(known_);
  }
  if (enough_us_ == std::numeric_limits<double>::infinity()) return;
  for (; counted_ < order_.size() && noted_[order_[counted_]]; ++counted_) {
    in_order_[order_[counted_]] = noted_[order_[counted_]];
    if (sure_share_of_plain * step_us(in_order_) >= enough_us_) is_too_slow_ = true;
  }
}

double StepOfStages::us_with(size_t stage, const Plan& plan) const {
  std::vector<const Plan*> with = known_;
  with[stage] = &plan;
  return step_us(with);
}

bool StepOfStages::is_better(size_t stage, const Plan& a, const Plan& b) const {
  if (!is_within_budget(a) || !is_within_budget(b)) return plimsoll::is_better(a, b);
  return us_with(stage, a) < us_with(stage, b);
}

double StepOfStages::fast_enough_us() const { return us_ * (1 + rounding); }

double StepOfStages::us_with_stretched(size_t stage, double alone_us) const {
  return us_with(stage, stretched(*plain_[stage], alone_us - plain_[stage]->predicted_step_us));
}

double StepOfStages::enough_us_of(size_t stage) const {
  if (enough_us_ == std::numeric_limits<double>::infinity()) return enough_us_;
  const double waits_us = us_with_stretched(stage, enough_us_) - enough_us_;
  return enough_us_ - sure_share_of_waiting * std::max(0.0, waits_us);
}

double StepOfStages::hidden_us_of(size_t stage) const {
  double hidden_us = plain_[stage]->predicted_step_us, too_long_us = known_[order_.front()]->predicted_step_us;
  for (int i = 0; i < hidden_tries && hidden_us < too_long_us; ++i) {
    const double us = (hidden_us + too_long_us) / 2;
    (us_with_stretched(stage, us) <= fast_enough_us() ? hidden_us : too_long_us) = us;
  }
  return hidden_us;
}

double StepOfStages::us_with_more(size_t stage, double us) const {
  return us_with_stretched(stage, plain_[stage]->predicted_step_us + us);
}

}  // namespace plimsoll
