#pragma once

// Makes the whole training step from a forward graph: loss, gradients, clipping, accumulation, updates.

#include "ir/graph.h"
#include "passes/job.h"

namespace plimsoll {

// Makes `loss` the graph's only output, as the request says: a named output, the one scalar float output, a loss built
// from named values, or a sum of such with weights. A value is found by its output or value name. Errors list what
// there is.
Status attach_loss(Graph& graph, llvm::StringRef loss);

// Sets State::trained from the regular expressions: parameters that `train` matches (all when it is empty) and
// `freeze` does not. Buffers are trained only when `train` names them. Of a graph with adapters these are trained, and
// of the model only what `train` names.
Status select_trained(Graph& graph, llvm::ArrayRef<std::string> train, llvm::ArrayRef<std::string> freeze);

// The functions of the job. `forward` has its trained states marked and one output, its loss, or is divided among ranks
// (passes/partition/divide_batch.h); then gradients are added up over the ranks before they are used.
// - "train_step" gives `loss`, and `grad_norm` when it also updates. When neither accumulation nor global clipping
//   stands in between, each update follows its gradient at once.
// - With precision fp16 the seed is multiplied by the state "loss_scale" and the updates divide by it. A step whose
//   gradients overflow changes no parameter, no moment and no step counter; it halves the scale.
// - "update", with accumulate > 1: reads accumulated gradients, updates and clears them; gives `grad_norm`.
//   Gradients accumulate as sums over samples and are divided by the whole weight of the batch, so micro-batches that
//   hold different numbers of counted labels still give the full batch's gradient; train_step then also gives `weight`.
//   That weight is `sample_weight` where the loss is a mean whose nodes no longer show what it was divided by.
Result<Program> make_training_program(Graph forward, const TrainingRequest& request,
                                      ValueId sample_weight = ValueId::None);

}  // namespace plimsoll
