#pragma once

// One optimizer's update of one parameter, as nodes. SGD, Adam and AdamW have ops of their own; the others are composed
// of elementwise ops, reductions and matmuls, which every backend has, so that they cost some more traffic and no
// kernel.

#include "ir/builder.h"
#include "passes/train/optimizer_update.h"

#include <map>

namespace plimsoll {

// What the updates of a step share.
struct UpdateInputs {
  ValueId learning_rate = ValueId::None;
  ValueId step = ValueId::None;   // the number of this update, from 1; where one of the optimizers counts
  ValueId scale = ValueId::None;  // factor of every gradient; None: 1
  ValueId skip = ValueId::None;   // true: nothing changes; None: it always does
  bool gives_norms = false;       // the update ops give the norms of their gradients, where there is an op
};

// Does the optimizer's update depend on how many there were?
bool counts_steps(OptimizerKind kind);
// Is it one op, which can give the norms of its gradient?
bool is_one_op(OptimizerKind kind);

// The scales of a parameter's 8-bit moments as a rank holds them: a pair for each block.
struct MomentScales {
  Type type;
  Divisions divisions;
};
// None where the moments stay in f32: those of a small parameter, and of one whose pieces cut blocks apart. Blocks are
// those of the whole parameter, so that moments have the same bits on any mesh.
std::optional<MomentScales> moment_scales(const Trained& parameter, const TrainingRequest& request);

class OptimizerSteps {
 public:
  OptimizerSteps(Builder& b, const TrainingRequest& request, const UpdateInputs& inputs)
      : b_(b), request_(request), inputs_(inputs) {}

  struct Updated {
    ValueId weights;
    ValueId norms = ValueId::None;
  };
  // `weights` is the parameter, its master copy, or the rank's piece of it, and has the gradient's shape. Adds the
  // optimizer's states and gives them their next values.
  Updated emit(const Trained& parameter, ValueId weights);

  // A state of the optimizer, divided as the parameter's update is. Another `shape` is that of a whole parameter's.
  ValueId add_state(const Trained& parameter, llvm::StringRef suffix, StateInit init = {StateInit::Kind::Fill, 0, ""},
                    const Shape* shape = nullptr);
  // The same of 8-bit or bf16 moments and of their scales, whose elements are other ones than the parameter's.
  ValueId add_state(const Trained& parameter, llvm::StringRef suffix, Type type, Divisions divisions,
                    StateInit init = {StateInit::Kind::Fill, 0, ""});
  // Gives the state its next value, unless the step is skipped.
  void update_state(ValueId state, ValueId next);

 private:
  Updated emit_one_op(llvm::StringRef op, const Trained& p, llvm::ArrayRef<ValueId> operands, Attrs attrs,
                      llvm::ArrayRef<ValueId> states);
  Updated emit_sgd(const Trained& p, ValueId weights);
  Updated emit_adam(const Trained& p, ValueId weights, ValueId learning_rate, bool decoupled);
  void set_rounding(const Trained& p, ValueId weights, Attrs& attrs) const;
  Updated emit_adam_8bit(const Trained& p, ValueId weights, ValueId learning_rate, Attrs attrs,
                         const MomentScales& scales);
  Updated emit_lamb(const Trained& p, ValueId weights);
  ValueId emit_lion(const Trained& p, ValueId weights);
  ValueId emit_rmsprop(const Trained& p, ValueId weights);
  ValueId emit_adagrad(const Trained& p, ValueId weights);
  ValueId emit_adafactor(const Trained& p, ValueId weights);
  ValueId adafactor_variance(const Trained& p, ValueId gradient);
  ValueId emit_muon(const Trained& p, ValueId weights);
  ValueId orthogonalised(ValueId matrix);

  ValueId rate_of(const Trained& p);  // f32
  ValueId rate_of(const Trained& p, DType dtype) { return b_.cast(rate_of(p), dtype); }
  ValueId gradient_of(const Trained& p, ValueId weights);  // scaled, in the weights' dtype
  ValueId sum_squares(const Trained& p, ValueId x);        // of the whole tensor, whichever ranks have it, in f32
  ValueId decayed(const Trained& p, ValueId weights, ValueId rate);  // weights * (1 - rate * weight_decay)
  ValueId with_l2(const Trained& p, ValueId gradient, ValueId weights);
  ValueId mean(ValueId running, ValueId next, double decay);  // running * decay + next * (1 - decay)
  ValueId scalar_like(double value, ValueId x) { return b_.scalar(value, b_.type(x).dtype); }
  ValueId mul(ValueId a, ValueId b) { return b_.emit("mul", {a, b}); }
  ValueId times(ValueId x, double factor) { return mul(x, scalar_like(factor, x)); }
  ValueId add(ValueId a, ValueId b) { return b_.emit("add", {a, b}); }
  ValueId sub(ValueId a, ValueId b) { return b_.emit("sub", {a, b}); }
  ValueId div(ValueId a, ValueId b) { return b_.emit("div", {a, b}); }
  ValueId at_least(ValueId x, double least) { return b_.emit("max", {x, scalar_like(least, x)}); }

  Builder& b_;
  const TrainingRequest& request_;
  UpdateInputs inputs_;
  std::map<double, ValueId> rates_;  // by multiple of the learning rate
};

}  // namespace plimsoll
