#include "ir/plan/timeline.h"

#include "ir/machine/engine_clock.h"
#include "ir/op_def.h"

#include <algorithm>

namespace plimsoll {
namespace {

class Prediction {
 public:
  Prediction(const PlanFunction& function, const DeviceDescription& device)
      : function_(function), device_(device), due_(function.instructions.size() + 1) {
    clock_.restart(device.duplex_shares(), device.interference_of_copies());
  }

  Timeline run() {
    const size_t end = function_.instructions.size();
    time_.start_us.resize(end);
    time_.end_us.resize(end);
    for (size_t i = 0; i < end; ++i) {
      wait_for_copies(i);
      const OpDef* op = find_op(function_.instructions[i].op);
      if (op && op->engine == Engine::Ranks)
        communicate(i);
      else if (op && is_copy(op->engine))
        issue(i, op->engine);
      else
        compute(i);
    }
    wait_for_copies(end);
    time_.total_us = clock_.now_us();
    return std::move(time_);
  }

 private:
  struct Copy {
    size_t instruction;
    Engine engine;
    size_t place;
  };

  void compute(size_t i) {
    time_.start_us[i] = clock_.now_us();
    clock_.compute(function_.instructions[i].predicted_us);
    time_.end_us[i] = clock_.now_us();
  }

  void issue(size_t i, Engine engine) {
    const Instruction& instruction = function_.instructions[i];
    const size_t done = instruction.done < 0 ? i + 1 : static_cast<size_t>(instruction.done);
    due_[done].push_back({i, engine, clock_.issue(engine, instruction.predicted_us)});
  }

  void communicate(size_t i) {
    const Instruction& instruction = function_.instructions[i];
    const bool joins = instruction.done >= 0 && i > 0 && function_.instructions[i - 1].op == instruction.op;
    double us = instruction.predicted_us - (joins ? device_.collective_us : 0);
    time_.start_us[i] = clock_.now_us();
    if (instruction.done < 0) {
      clock_.compute(us);
      time_.end_us[i] = clock_.now_us();
      time_.exposed_us += us;
    } else {
      us /= device_.collective_share;
      time_.end_us[i] = clock_.issue_collective(us, device_.collective_interference);
      time_.start_us[i] = time_.end_us[i] - us;
      collectives_due_.push_back({static_cast<size_t>(instruction.done), time_.end_us[i]});
    }
    time_.ranks_us += us;
  }

  void wait_for_copies(size_t i) {
    for (const auto& [done, end_us] : collectives_due_)
      if (done == i) {
        const double waited = clock_.wait_until(end_us);
        time_.stalled_us += waited;
        time_.exposed_us += waited;
      }
    for (const Copy& copy : due_[i]) {
      time_.stalled_us += clock_.wait_for(copy.engine, copy.place);
      const double start = clock_.start_us(copy.engine, copy.place), end = clock_.finish_us(copy.engine, copy.place);
      time_.start_us[copy.instruction] = start;
      time_.end_us[copy.instruction] = end;
      (copy.engine == Engine::ToHost ? time_.to_host_us : time_.to_device_us) += end - start;
    }
  }

  const PlanFunction& function_;
  const DeviceDescription& device_;
  Timeline time_;
  EngineClock clock_;
  std::vector<std::pair<size_t, double>> collectives_due_;  // the instruction that waits, and until when
  std::vector<llvm::SmallVector<Copy, 1>> due_;             // by instruction: the copies it waits for
};

}  // namespace

Timeline predict_timeline(const PlanFunction& function, const DeviceDescription& device) {
  return Prediction(function, device).run();
}

}  // namespace plimsoll
