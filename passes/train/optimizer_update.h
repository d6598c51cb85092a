#pragma once

// The updates of a training step: the global gradient norm, clipping, the loss scale and one optimizer op per
// parameter.

#include "ir/builder.h"
#include "passes/job.h"

namespace plimsoll {

// A trained parameter as one function sees it.
struct Trained {
  std::string name;
  Type type;
  OriginId origin;
  ValueId value;                 // in the function at hand
  ValueId grad = ValueId::None;  // in the function at hand
};

ValueId add_counter(Graph& graph, llvm::StringRef name, DType dtype, double start);

// Appends the updates of `parameters`, which have gradients. The gradients are divided by `weight`, the accumulated
// sample weight, and by `loss_scale`; each may be None.
void emit_updates(Graph& graph, llvm::ArrayRef<Trained> parameters, ValueId weight, ValueId loss_scale,
                  const TrainingRequest& request);

}  // namespace plimsoll
