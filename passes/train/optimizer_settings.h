#pragma once

// Which numbers each optimizer has, under which names, and what they are where nobody says. Command line, summaries and
// checks read this one table.

#include "passes/job.h"

#include <cmath>

namespace plimsoll {

struct OptimizerSetting {
  llvm::StringLiteral name;  // as in PyTorch; the command line has dashes
  double OptimizerSpec::*value;
  uint32_t optimizers;  // a bit for each kind
  llvm::StringLiteral help;
  double min = 0, below = 0;  // the range; below 0: no end

  bool applies_to(OptimizerKind kind) const { return (optimizers >> static_cast<uint32_t>(kind)) & 1; }
};

constexpr uint32_t kinds_of(std::initializer_list<OptimizerKind> kinds) {
  uint32_t bits = 0;
  for (OptimizerKind kind : kinds) bits |= uint32_t{1} << static_cast<uint32_t>(kind);
  return bits;
}
inline constexpr uint32_t every_optimizer = (uint32_t{1} << std::size(optimizer_names)) - 1;

inline constexpr OptimizerSetting optimizer_settings[] = {
    {"lr", &OptimizerSpec::learning_rate, every_optimizer, "learning rate"},
    {"weight_decay", &OptimizerSpec::weight_decay, every_optimizer,
     "weight decay: added to the gradient for sgd, adam, rmsprop and adagrad, decoupled for the others"},
    {"beta1", &OptimizerSpec::beta1,
     kinds_of(
         {OptimizerKind::Adam, OptimizerKind::AdamW, OptimizerKind::Lion, OptimizerKind::Lamb, OptimizerKind::Muon}),
     "decay of the mean of gradients", 0, 1},
    {"beta2", &OptimizerSpec::beta2,
     kinds_of(
         {OptimizerKind::Adam, OptimizerKind::AdamW, OptimizerKind::Lion, OptimizerKind::Lamb, OptimizerKind::Muon}),
     "decay of the mean of squared gradients", 0, 1},
    {"eps", &OptimizerSpec::eps,
     kinds_of({OptimizerKind::Adam, OptimizerKind::AdamW, OptimizerKind::Adafactor, OptimizerKind::RmsProp,
               OptimizerKind::Adagrad, OptimizerKind::Lamb, OptimizerKind::Muon}),
     "added to the denominator; the least denominator of adafactor"},
    {"momentum", &OptimizerSpec::momentum, kinds_of({OptimizerKind::Sgd, OptimizerKind::RmsProp, OptimizerKind::Muon}),
     "momentum"},
    {"dampening", &OptimizerSpec::dampening, kinds_of({OptimizerKind::Sgd}), "dampening of the momentum", -INFINITY},
    {"alpha", &OptimizerSpec::alpha, kinds_of({OptimizerKind::RmsProp}), "decay of the mean of squared gradients", 0,
     1},
    {"beta2_decay", &OptimizerSpec::beta2_decay, kinds_of({OptimizerKind::Adafactor}),
     "power of the update's number that the squared gradients' share in their mean falls with", -INFINITY},
    {"clip_threshold", &OptimizerSpec::clip_threshold, kinds_of({OptimizerKind::Adafactor}),
     "largest root mean square of an update", 1e-300},
    {"min_scale", &OptimizerSpec::min_scale, kinds_of({OptimizerKind::Adafactor}),
     "least root mean square that a parameter counts as"},
};

// Does it keep Adam's moments, of all parameters or of some?
inline bool has_moments(OptimizerKind kind) {
  return (kinds_of({OptimizerKind::Adam, OptimizerKind::AdamW, OptimizerKind::Lamb, OptimizerKind::Muon}) >>
          static_cast<uint32_t>(kind)) &
         1;
}
// Among the numbers of a plan: the bits of a moment, where they are not 32.
inline constexpr llvm::StringLiteral moment_bits_number = "moment_bits";

// Are weights in bf16 without a master copy rounded stochastically? By an optimizer that is one op with moments.
inline bool rounds_stochastically(const TrainingRequest& request, OptimizerKind kind) {
  return request.master_weights == MasterWeights::Off && (kind == OptimizerKind::Adam || kind == OptimizerKind::AdamW);
}
// Among the numbers of a plan: 0 where weights have no master copies, whatever their type.
inline constexpr llvm::StringLiteral master_weights_number = "master_weights";

inline bool has_nesterov(OptimizerKind kind) { return kind == OptimizerKind::Sgd || kind == OptimizerKind::Muon; }

// The optimizer with PyTorch's defaults, or its authors' where PyTorch has none; but adamw has no decay, and the
// learning rate of all but adafactor, lion, rmsprop and adagrad is 1e-3.
OptimizerSpec default_optimizer(OptimizerKind kind);

}  // namespace plimsoll
