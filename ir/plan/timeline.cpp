#include "ir/plan/timeline.h"

#include "ir/machine/duplex_link.h"
#include "ir/op_def.h"

#include <algorithm>

namespace plimsoll {
namespace {

class Clock {
 public:
  Clock(const PlanFunction& function, const DeviceDescription& device) : function_(function), toll_(device.toll_of_copies()), due_(function.instructions.size() + 1) {
    bus_.restart(device.copy_shares());
  }

  Timeline run() {
    const size_t end = function_.instructions.size();
    time_.start_us.resize(end);
    time_.end_us.resize(end);
    for (size_t i = 0; i < end; ++i) {
      wait_for_copies(i);
      const OpDef* op = find_op(function_.instructions[i].op);
      if (op && op->channel != Channel::Compute)
        issue(i, op->channel);
      else
        compute(i);
    }
    wait_for_copies(end);
    time_.total_us = now_;
    return std::move(time_);
  }

 private:
  struct Copy {
    size_t instruction;
    Channel channel;
    size_t place;
  };

  void compute(size_t i) {
    time_.start_us[i] = now_;
    time_.end_us[i] = now_ += function_.instructions[i].predicted_us;
  }

  void issue(size_t i, Channel channel) {
    const Instruction& instruction = function_.instructions[i];
    const size_t done = instruction.done < 0 ? i + 1 : static_cast<size_t>(instruction.done);
    due_[done].push_back({i, channel, bus_.issue(channel, instruction.predicted_us, now_)});
    now_ += toll_.us(instruction.predicted_us);
  }

  void wait_for_copies(size_t i) {
    for (const Copy& copy : due_[i]) {
      const double end = bus_.finish_us(copy.channel, copy.place), start = bus_.start_us(copy.channel, copy.place);
      time_.start_us[copy.instruction] = start;
      time_.end_us[copy.instruction] = end;
      (copy.channel == Channel::ToHost ? time_.to_host_us : time_.to_device_us) += end - start;
      time_.stalled_us += std::max(0.0, end - now_);
      now_ = std::max(now_, end);
    }
  }

  const PlanFunction& function_;
  const CopyToll toll_;
  Timeline time_;
  double now_ = 0;                                 // of computing
  CopyBus bus_;
  std::vector<llvm::SmallVector<Copy, 1>> due_;    // by instruction: the copies it waits for
};

}  // namespace

Timeline predict_timeline(const PlanFunction& function, const DeviceDescription& device) { return Clock(function, device).run(); }

}  // namespace plimsoll
