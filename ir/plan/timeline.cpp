#include "ir/plan/timeline.h"

#include "ir/op_def.h"

#include <algorithm>

namespace plimsoll {
namespace {

class Clock {
 public:
  explicit Clock(const PlanFunction& function) : function_(function), waits_(function.instructions.size() + 1) {}

  Timeline run() {
    for (size_t i = 0; i < function_.instructions.size(); ++i) {
      wait_for(waits_[i]);
      const OpDef* op = find_op(function_.instructions[i].op);
      step(i, op ? op->channel : Channel::Compute);
    }
    wait_for(waits_.back());
    time_.total_us = now_;
    return std::move(time_);
  }

 private:
  void step(size_t i, Channel channel) {
    const Instruction& instruction = function_.instructions[i];
    double& free = channel == Channel::Compute ? now_ : free_[static_cast<size_t>(channel)];
    const double start = std::max(free, now_), end = start + instruction.predicted_us;
    free = end;
    time_.start_us.push_back(start);
    time_.end_us.push_back(end);
    if (channel == Channel::Compute) return;
    (channel == Channel::ToHost ? time_.to_host_us : time_.to_device_us) += instruction.predicted_us;
    double& wait = waits_[instruction.done < 0 ? i + 1 : static_cast<size_t>(instruction.done)];
    wait = std::max(wait, end);
  }

  void wait_for(double end) {
    time_.stalled_us += std::max(0.0, end - now_);
    now_ = std::max(now_, end);
  }

  const PlanFunction& function_;
  Timeline time_;
  double now_ = 0;           // of computing
  double free_[3] = {};      // by channel
  std::vector<double> waits_;  // by instruction: when the copies waited for before it end
};

}  // namespace

Timeline predict_timeline(const PlanFunction& function) { return Clock(function).run(); }

}  // namespace plimsoll
