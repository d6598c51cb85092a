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

size_t due_of(llvm::ArrayRef<Instruction> instructions, size_t copy) {
  return instructions[copy].done < 0 ? copy + 1 : static_cast<size_t>(instructions[copy].done);
}

// For each instruction the last one of its launch: neighbouring collectives of a kind are through together.
std::vector<size_t> find_launches(llvm::ArrayRef<Instruction> instructions) {
  std::vector<bool> is_due(instructions.size() + 1, false);
  for (size_t i = 0; i < instructions.size(); ++i)
    if (engine_of(instructions[i]) != Engine::Compute) is_due[due_of(instructions, i)] = true;
  std::vector<size_t> last(instructions.size());
  for (size_t i = instructions.size(); i-- > 0;) {
    const bool joined = i + 1 < instructions.size() && engine_of(instructions[i]) == Engine::Ranks &&
                        instructions[i].op == instructions[i + 1].op && !is_due[i + 1];
    last[i] = joined ? last[i + 1] : i;
  }
  return last;
}

std::vector<llvm::SmallVector<size_t, 2>> find_due(llvm::ArrayRef<Instruction> instructions) {
  const std::vector<size_t> launches = find_launches(instructions);
  std::vector<LastCopies> last(instructions.size() + 1);
  for (size_t i = 0; i < instructions.size(); ++i) {
    const Engine engine = engine_of(instructions[i]);
    if (engine == Engine::Compute) continue;
    of_engine(last[due_of(instructions, i)], engine) = launches[i];  // in order: the latest stays
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
  CopyOrder order{find_due(function.instructions), std::vector<bool>(function.instructions.size())};
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
