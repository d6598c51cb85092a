#include "runtime/copy_order.h"

#include "ir/op_def.h"

#include <algorithm>
#include <array>

namespace plimsoll {
namespace {

// The last copy of each engine; computing has none.
using LastCopies = std::array<std::optional<size_t>, engine_count>;

std::optional<size_t>& of_engine(LastCopies& copies, Engine engine) { return copies[static_cast<size_t>(engine)]; }

Engine engine_of(const Instruction& instruction) {
  const OpDef* op = find_op(instruction.op);
  return op ? op->engine : Engine::Compute;
}

std::vector<llvm::SmallVector<size_t, 2>> find_due(const PlanFunction& function) {
  llvm::ArrayRef<Instruction> instructions = function.instructions;
  std::vector<LastCopies> last(instructions.size() + 1);
  for (size_t i = 0; i < instructions.size(); ++i) {
    const Engine engine = engine_of(instructions[i]);
    if (engine == Engine::Compute) continue;
    const size_t due = instructions[i].done < 0 ? i + 1 : static_cast<size_t>(instructions[i].done);
    of_engine(last[due], engine) = i;  // in order: the latest stays
  }
  std::vector<llvm::SmallVector<size_t, 2>> waits(last.size());
  LastCopies through;
  for (size_t at = 0; at < last.size(); ++at)
    for (size_t engine = 0; engine < through.size(); ++engine)
      if (last[at][engine] > through[engine]) waits[at].push_back(*(through[engine] = last[at][engine]));
  return waits;
}

}  // namespace

CopyOrder order_copies(const PlanFunction& function) {
  CopyOrder order{find_due(function), std::vector<bool>(function.instructions.size())};
  LastCopies since_computing;  // copies that nothing was computed or waited for behind
  for (size_t i = 0; i < function.instructions.size(); ++i) {
    const Engine engine = engine_of(function.instructions[i]);
    if (engine == Engine::Compute || !order.due[i].empty()) since_computing = {};
    if (engine == Engine::Compute) continue;
    order.waits[i] = !of_engine(since_computing, engine);
    of_engine(since_computing, engine) = i;
  }
  return order;
}

}  // namespace plimsoll
