#pragma once

// Finds where the numbers of a step first become NaN or infinite.

#include "runtime/session.h"

namespace plimsoll {

// A trained weight, or what else must hold numbers: NaN is never one. Infinity is one elsewhere, such as in a mask.
bool holds_nan(const TensorView& values);
bool holds_infinity(const TensorView& values);

struct BadResult {
  enum class Kind : uint8_t { Input, State, Instruction } kind = Kind::Input;
  std::string name;      // of the input, the state, or the instruction's first bad result
  bool is_nan = false;   // else it is infinite
  int32_t function = 0;  // of Kind::Instruction: its indices in the plan
  int32_t instruction = 0;
};

// Runs one more step and looks at everything it reads and makes: the first input or trained state that is bad, else the
// first instruction that makes NaN or infinity from operands without. None: there is none. The states are as after a
// step.
Result<std::optional<BadResult>> find_bad_result(Session& session, BatchSource& data);

// "softmax of node /encoder/Softmax makes NaN in %h.3 (model.py:12: ...)"
std::string describe(const BadResult& bad, const Plan& plan);

}  // namespace plimsoll
