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
    clock_.restart(device.duplex_shares(), device.interference_of_copies(), device.collective_shares());
    time_.start_us.resize(function.instructions.size());
    time_.end_us.resize(function.instructions.size());
  }

  // Runs until an instruction waits for a meeting of stages whose end is not known, or to the end.
  void run() {
    const size_t end = function_.instructions.size();
    for (; next_ < end && can_run(); ++next_) {
      wait_for_copies(next_);
      const Engine engine = engine_of(next_);
      if (engine == Engine::Compute)
        compute(next_);
      else
        meets_stages(next_) ? come(next_) : issue(next_, engine);
    }
    if (next_ == end && !is_through_ && can_run()) {
      wait_for_copies(end);
      time_.total_us = clock_.now_us();
      is_through_ = true;
    }
  }

  // The first meeting of stages whose end is not known; null where there is none.
  const Instruction* meeting() const {
    return met_ < meetings_.size() ? &function_.instructions[meetings_[met_].instruction] : nullptr;
  }
  // When it can begin for this stage, and how long it takes from then on.
  double meeting_start_us() const { return std::max(meetings_[met_].came_us, link_us_); }
  double meeting_us() const { return duration_us(*meeting()); }
  void meet(double start_us, double end_us) {
    Meeting& meeting = meetings_[met_++];
    meeting.start_us = time_.start_us[meeting.instruction] = start_us;
    meeting.end_us = time_.end_us[meeting.instruction] = link_us_ = end_us;
    time_.ranks_us += end_us - start_us;
  }

  Timeline take() { return std::move(time_); }

 private:
  // Of stages; a rank's own are one after the other.
  struct Meeting {
    size_t instruction, done;
    double came_us, start_us = 0, end_us = 0;
  };

  bool meets_stages(size_t i) const {
    return function_.instructions[i].attrs.get_string("axis") == axis_name(MeshAxis::Stage);
  }

  // Those that the next instruction waits for have met.
  bool can_run() const {
    for (size_t i = met_; i < meetings_.size(); ++i)
      if (meetings_[i].done == next_) return false;
    return true;
  }

  double duration_us(const Instruction& instruction) const {
    return instruction.done < 0 ? instruction.predicted_us : instruction.predicted_us / device_.collective_share;
  }

  void come(size_t i) {
    const Instruction& instruction = function_.instructions[i];
    meetings_.push_back({i, instruction.done < 0 ? i + 1 : static_cast<size_t>(instruction.done), clock_.now_us()});
    if (instruction.done >= 0) clock_.compute(device_.collective_interference * duration_us(instruction));
  }

  void wait_for_meetings(size_t i) {
    for (; waited_ < met_ && meetings_[waited_].done < i; ++waited_) {
    }
    for (size_t at = waited_; at < met_; ++at) {
      const Meeting& meeting = meetings_[at];
      if (meeting.done != i) continue;
      time_.awaited_us += clock_.wait_until(meeting.start_us);
      time_.exposed_us += clock_.wait_until(meeting.end_us);
    }
  }

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
    const double us = instruction.predicted_us;
    const size_t place =
        engine == Engine::Ranks ? clock_.issue_collective(us, joins_launch(i)) : clock_.issue(engine, us);
    due_[instruction.done < 0 ? i + 1 : static_cast<size_t>(instruction.done)].push_back({i, engine, place});
  }

  // Neighbours of one kind are one launch, unless computing waits for something between them.
  bool joins_launch(size_t i) const {
    return i > 0 && function_.instructions[i - 1].op == function_.instructions[i].op && due_[i].empty();
  }

  void wait_for_copies(size_t i) {
    wait_for_meetings(i);
    for (const Copy& copy : due_[i]) {
      const double waited_us = clock_.wait_for(copy.engine, copy.place);
      time_.stalled_us += waited_us;
      if (copy.engine == Engine::Ranks) time_.exposed_us += waited_us;
      const double start = clock_.start_us(copy.engine, copy.place), end = clock_.finish_us(copy.engine, copy.place);
      time_.start_us[copy.instruction] = start;
      time_.end_us[copy.instruction] = end;
      busy_us(copy.engine) += end - start;
    }
  }

  double& busy_us(Engine engine) {
    return engine == Engine::Ranks ? time_.ranks_us : engine == Engine::ToHost ? time_.to_host_us : time_.to_device_us;
  }

  Engine engine_of(size_t i) const {
    const OpDef* op = find_op(function_.instructions[i].op);
    return op ? op->engine : Engine::Compute;
  }

  const PlanFunction& function_;
  const DeviceDescription& device_;
  Timeline time_;
  size_t next_ = 0;  // the instruction to run
  bool is_through_ = false;
  std::vector<Meeting> meetings_;  // in order
  size_t met_ = 0, waited_ = 0;    // of meetings_: how many have an end, and how many are waited for
  double link_us_ = 0;             // when those that met are through
  EngineClock clock_;
  std::vector<llvm::SmallVector<Copy, 1>> due_;  // by instruction: the copies and collectives it waits for
};

// Two stages of which one sends what the other receives next, or all that add up. One that waits in vain is alone.
llvm::SmallVector<Prediction*, 8> next_meeting(std::vector<Prediction>& stages) {
  llvm::SmallVector<Prediction*, 8> adding, waiting;
  for (size_t i = 0; i < stages.size(); ++i) {
    const Instruction* own = stages[i].meeting();
    if (!own) continue;
    waiting.push_back(&stages[i]);
    if (!own->attrs.has("peer")) {
      adding.push_back(&stages[i]);
      continue;
    }
    const auto peer = static_cast<size_t>(own->attrs.get_int("peer"));
    const Instruction* other = peer < stages.size() && peer != i ? stages[peer].meeting() : nullptr;
    if (other && other->attrs.has("peer") && static_cast<size_t>(other->attrs.get_int("peer")) == i &&
        other->op != own->op)
      return {&stages[i], &stages[peer]};
  }
  if (adding.size() == stages.size()) return adding;
  waiting.truncate(std::min<size_t>(waiting.size(), 1));
  return waiting;
}

}  // namespace

Timeline predict_timeline(const PlanFunction& function, const DeviceDescription& device) {
  return std::move(predict_timelines(StageFunction{&function, &device}).front());
}

std::vector<Timeline> predict_timelines(const Plan& plan, size_t function) {
  llvm::SmallVector<StageFunction, 4> stages;
  for (const Plan* stage : plan.stages()) stages.push_back({&stage->functions[function], &stage->device});
  return predict_timelines(stages);
}

std::vector<Timeline> predict_timelines(llvm::ArrayRef<StageFunction> stages) {
  std::vector<Prediction> predictions;
  for (const StageFunction& stage : stages) predictions.emplace_back(*stage.function, *stage.device);
  for (;;) {
    for (Prediction& each : predictions) each.run();
    llvm::SmallVector<Prediction*, 8> members = next_meeting(predictions);
    if (members.empty()) break;
    double start_us = 0, us = 0;
    for (Prediction* member : members) {
      start_us = std::max(start_us, member->meeting_start_us());
      us = std::max(us, member->meeting_us());
    }
    for (Prediction* member : members) member->meet(start_us, start_us + us);
  }
  std::vector<Timeline> timelines;
  for (Prediction& each : predictions) timelines.push_back(each.take());
  return timelines;
}

}  // namespace plimsoll
