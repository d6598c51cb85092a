#pragma once

// What sessions hold after some steps, and what checkpoints keep of it.

#include "ir/plan/check.h"
#include "runtime/checkpoint/snapshot.h"
#include "tests/support/small_training.h"

#include <cstring>

namespace plimsoll::testing {

inline Tensor copy_of(Session& session, llvm::StringRef state) {
  Tensor copy;
  llvm::cantFail(session.read_state(state, [&](const TensorView& view) {
    copy = Tensor(view.type, view.data);
    return Status::success();
  }));
  return copy;
}

// Is the copy the parameter, rounded? Both are in the model's order as a session hands them out.
inline bool is_rounded(const Tensor& copy, const Tensor& parameter) {
  if (copy.type().shape != parameter.type().shape) return false;
  Tensor rounded(copy.type());
  for (int64_t i = 0; i < copy.type().elements(); ++i) {
    rounded.view().set(i, parameter.get(i));
    if (rounded.get(i) != copy.get(i)) return false;
  }
  return true;
}

inline std::vector<double> losses_of_steps(Session& session, const RandomValues& values, int steps) {
  OneBatch data(values, session.inputs());
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) losses.push_back(llvm::cantFail(session.step(data)).loss);
  return losses;
}

// What a checkpoint has of a session's states.
struct Kept {
  std::map<std::string, Tensor> tensors;

  explicit Kept(Session& session) {
    for (const WholeState& state : session.whole_states())
      if (is_kept(state)) tensors.emplace(state.name, copy_of(session, state.name));
  }
  SavedStates saved(int64_t step) const {
    return {[this](const WholeState& state) { return tensors.count(state.name) > 0; },
            [this](const WholeState& state, int64_t first, const TensorView& into) {
              const Tensor& tensor = tensors.at(state.name);
              const int64_t size = dtype_bytes(tensor.type().dtype);
              std::memcpy(into.data, static_cast<const char*>(tensor.data()) + first * size,
                          static_cast<size_t>(into.type.bytes()));
              return Status::success();
            },
            step};
  }
};

inline std::string failure_of(const Plan& plan) {
  Status status = check_plan(plan);
  return status ? take_diag(std::move(status)).text() : "";
}

}  // namespace plimsoll::testing
