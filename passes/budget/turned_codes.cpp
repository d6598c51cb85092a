#include "passes/budget/turned_codes.h"

#include "ir/op_def.h"
#include "ir/plan/summary.h"
#include "ir/support/units.h"

namespace plimsoll {

int64_t bytes_of_made_transposes(const Program& program) {
  int64_t bytes = 0;
  for (const Graph& function : program.functions)
    for (NodeId id = function.first_node(); id != NodeId::None; id = function.next_node(id)) {
      const Node& node = function.node(id);
      if (node.op->name != "transpose") continue;
      const Type& codes = function.type(node.operands[0]);
      if (codes.dtype == DType::F8E4M3 && function.find_state(node.operands[0])) bytes += codes.bytes();
    }
  return bytes;
}

Decision decide_transposes(const Plan& plan, int64_t made, const Plan& plain) {
  const int64_t stored = bytes_of_stored_transposes(plan);
  const std::string all = "a step that makes all " + format_bytes(made) + " of them needs " +
                          format_bytes(plain.promised_bytes()) + " and takes " + format_us(plain.predicted_step_us);
  return {"expand-f8", "transposes of codes", stored == 0 ? "made in each step" : format_bytes(stored) + " as states",
          all + (stored == 0 ? ", and the budget has no room for them beside it"
                             : "; with these as states it takes " + format_us(plan.predicted_step_us))};
}

}  // namespace plimsoll
