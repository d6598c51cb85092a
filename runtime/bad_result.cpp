#include "runtime/bad_result.h"

#include <cmath>

namespace plimsoll {
namespace {

template <typename Test>
bool any_value(const TensorView& values, Test test) {
  if (!is_float(values.type.dtype)) return false;
  for (int64_t i = 0; i < values.elements(); ++i)
    if (test(values.get(i))) return true;
  return false;
}

struct Badness {
  bool nan = false, infinite = false;
};

class Search {
 public:
  Search(Session& session, BatchSource& data)
      : session_(session), plan_(session.plan()), data_(data), badness_(plan_.slots.size()) {}

  Result<std::optional<BadResult>> run() {
    for (const PlanState& state : plan_.states)
      if (Status s = look_at_state(state)) return s;
    for (const PlanConstant& constant : plan_.constants)
      if (Status s = look_at(constant.slot)) return s;
    for (size_t f = 0; f < plan_.functions.size() && !found_; ++f) {
      if (f > 0 && plan_.functions[f].name != "update") continue;
      for (int64_t call = 0; call < plan_.calls_per_step(f) && !found_; ++call)
        if (Status s = run_function(f == 0 ? session_.step_for(data_) : f, f == 0)) return s;
    }
    return std::move(found_);
  }

 private:
  Status look_at(SlotId slot) {
    return session_.executor().read(slot, [&](const TensorView& values) {
      badness_[static_cast<size_t>(plan_.storage_of(slot))] = {holds_nan(values), holds_infinity(values)};
      return Status::success();
    });
  }

  Badness of(SlotId slot) const { return badness_[static_cast<size_t>(plan_.storage_of(slot))]; }
  const std::string& name_of(SlotId slot) const { return plan_.slots[static_cast<size_t>(slot)].name; }

  Status look_at_state(const PlanState& state) {
    if (Status s = look_at(state.slot)) return s;
    const Badness bad = of(state.slot);
    if (!found_ && (bad.nan || (bad.infinite && state.trained)))
      found_ = {BadResult::Kind::State, name_of(state.slot), bad.nan};
    return Status::success();
  }

  Status feed(size_t f) {
    Result<llvm::ArrayRef<TensorView>> inputs = session_.executor().next_inputs(f);
    if (!inputs) return inputs.takeError();
    if (Status s = data_.next(*inputs)) return s;
    for (size_t i = 0; i < inputs->size(); ++i) {
      const Badness bad{holds_nan((*inputs)[i]), holds_infinity((*inputs)[i])};
      const PlanInput& input = plan_.functions[f].inputs[i];
      badness_[static_cast<size_t>(plan_.storage_of(input.slot))] = bad;
      if (!found_ && (bad.nan || bad.infinite)) found_ = {BadResult::Kind::Input, input.name, bad.nan};
    }
    return Status::success();
  }

  Status run_function(size_t f, bool is_fed) {
    if (is_fed)
      if (Status s = feed(f)) return s;
    const Executor::Observer observer = [&](int32_t instruction) { return look_at_results(f, instruction); };
    return session_.executor().run(f, &observer).takeError();
  }

  // Operands are judged as they were before the results, which may have taken over their bytes.
  Status look_at_results(size_t f, int32_t index) {
    const Instruction& instruction = plan_.functions[f].instructions[static_cast<size_t>(index)];
    Badness before;
    for (SlotId operand : instruction.operands) {
      if (operand < 0) continue;
      before.nan |= of(operand).nan;
      before.infinite |= of(operand).infinite;
    }
    for (SlotId result : instruction.results) {
      if (Status s = look_at(result)) return s;
      const Badness now = of(result);
      if (found_ || before.nan || before.infinite || !(now.nan || now.infinite)) continue;
      found_ = {BadResult::Kind::Instruction, name_of(result), now.nan, static_cast<int32_t>(f), index};
    }
    return Status::success();
  }

  Session& session_;
  const Plan& plan_;
  BatchSource& data_;
  std::vector<Badness> badness_;  // by slot, of those that own their bytes' content
  std::optional<BadResult> found_;
};

}  // namespace

bool holds_nan(const TensorView& values) {
  return any_value(values, [](double value) { return std::isnan(value); });
}

bool holds_infinity(const TensorView& values) {
  return any_value(values, [](double value) { return std::isinf(value); });
}

Result<std::optional<BadResult>> find_bad_result(Session& session, BatchSource& data) {
  return Search(session, data).run();
}

std::string describe(const BadResult& bad, const Plan& plan) {
  const std::string what = bad.is_nan ? "NaN" : "infinity";
  if (bad.kind == BadResult::Kind::Input) return "the batch holds " + what + " in the input '" + bad.name + "'";
  if (bad.kind == BadResult::Kind::State) return "'" + bad.name + "' holds " + what + " before the step";
  const Instruction& made =
      plan.functions[static_cast<size_t>(bad.function)].instructions[static_cast<size_t>(bad.instruction)];
  std::string text = "the first op whose result is bad is " + made.op;
  if (made.origin < 0) return text + ", which makes " + what + " in %" + bad.name;
  const Origin& origin = plan.origins[static_cast<size_t>(made.origin)];
  text += " of node " + origin.node + ", which makes " + what + " in %" + bad.name;
  return origin.source.empty() ? text : text + " (" + origin.source + ")";
}

}  // namespace plimsoll
