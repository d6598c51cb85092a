#pragma once

// The updates of a training step: the global gradient norm, clipping, the loss scale and one optimizer op per
// parameter.

#include "ir/builder.h"
#include "passes/train/update_rules.h"

namespace plimsoll {

// A trained parameter as one function sees it.
struct Trained {
  std::string name;
  Type type;
  OriginId origin;
  ValueId value;                 // in the function at hand
  ValueId grad = ValueId::None;  // in the function at hand
  Divisions divisions;           // not empty: value is the rank's piece
  UpdateRule rule = {};
};

// The running mean of a parameter's weights is the state of the parameter's name and this.
inline constexpr llvm::StringLiteral ema_suffix = ".ema";

ValueId add_counter(Graph& graph, llvm::StringRef name, DType dtype, double start);

// Of a parameter that every rank holds: the shape of the piece whose gradient and optimizer states are the rank's.
// Empty where every rank updates all of it, or holds a piece of it anyway.
Shape updated_piece(const Trained& parameter, const TrainingRequest& request);

// Appends the updates of `parameters`, which have gradients. Gradients are those of all ranks, or of
// their pieces. They are divided by `weight`, the accumulated
// sample weight, and by `loss_scale`; each may be None.
void emit_updates(Graph& graph, llvm::ArrayRef<Trained> parameters, ValueId weight, ValueId loss_scale,
                  const TrainingRequest& request);

}  // namespace plimsoll
