#include "ir/plan/timeline.h"

#include "ir/machine/engine_clock.h"
#include "ir/op_def.h"

#include <algorithm>

namespace plimsoll {
namespace {

class Prediction {
 public:
  Prediction(const PlanFunction& function, const DeviceDescription& device)
      : function_(function), due_(function.instructions.size() + 1) {
    clock_.restart(device.duplex_shares(), device.interference_of_copies());
  }

  Timeline run() {
    const size_t end = function_.instructions.size();
    time_.start_us.resize(end);
    time_.end_us.resize(end);
    for (size_t i = 0; i < end; ++i) {
      wait_for_copies(i);
      const OpDef* op = find_op(function_.instructions[i].op);
      if (op && op->engine != Engine::Compute)
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

  void wait_for_copies(size_t i) {
    for (const Copy& copy : due_[i]) {
      time_.stalled_us += clock_.wait_for(copy.engine, copy.place);
      const double start = clock_.start_us(copy.engine, copy.place), end = clock_.finish_us(copy.engine, copy.place);
      time_.start_us[copy.instruction] = start;
      time_.end_us[copy.instruction] = end;
      (copy.engine == Engine::ToHost ? time_.to_host_us : time_.to_device_us) += end - start;
    }
  }

  const PlanFunction& function_;
  Timeline time_;
  EngineClock clock_;
  std::vector<llvm::SmallVector<Copy, 1>> due_;  // by instruction: the copies it waits for
};

}  // namespace

Timeline predict_timeline(const PlanFunction& function, const DeviceDescription& device) {
  return Prediction(function, device).run();
}

}  // namespace plimsoll
