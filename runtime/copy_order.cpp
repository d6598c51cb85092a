#include "runtime/copy_order.h"

#include "ir/op_def.h"

#include <algorithm>
#include <array>

namespace plimsoll {
namespace {

// By channel, the copy that was last in some sense; computing has none.
using LastCopies = std::array<std::optional<size_t>, 3>;

std::optional<size_t>& of_channel(LastCopies& copies, Channel channel) { return copies[static_cast<size_t>(channel)]; }

Channel channel_of(const Instruction& instruction) {
  const OpDef* op = find_op(instruction.op);
  return op ? op->channel : Channel::Compute;
}

std::vector<llvm::SmallVector<size_t, 2>> find_due(const PlanFunction& function) {
  llvm::ArrayRef<Instruction> instructions = function.instructions;
  std::vector<LastCopies> last(instructions.size() + 1);
  for (size_t i = 0; i < instructions.size(); ++i) {
    const Channel channel = channel_of(instructions[i]);
    if (channel == Channel::Compute) continue;
    const size_t due = instructions[i].done < 0 ? i + 1 : static_cast<size_t>(instructions[i].done);
    of_channel(last[due], channel) = i;  // in order: the latest stays
  }
  std::vector<llvm::SmallVector<size_t, 2>> waits(last.size());
  LastCopies through;
  for (size_t at = 0; at < last.size(); ++at)
    for (size_t channel = 0; channel < through.size(); ++channel)
      if (last[at][channel] > through[channel]) waits[at].push_back(*(through[channel] = last[at][channel]));
  return waits;
}

}  // namespace

CopyOrder order_copies(const PlanFunction& function) {
  CopyOrder order{find_due(function), std::vector<bool>(function.instructions.size())};
  LastCopies since_computing;  // copies that nothing was computed or waited for behind
  for (size_t i = 0; i < function.instructions.size(); ++i) {
    const Channel channel = channel_of(function.instructions[i]);
    if (channel == Channel::Compute || !order.due[i].empty()) since_computing = {};
    if (channel == Channel::Compute) continue;
    order.waits[i] = !of_channel(since_computing, channel);
    of_channel(since_computing, channel) = i;
  }
  return order;
}

}  // namespace plimsoll
