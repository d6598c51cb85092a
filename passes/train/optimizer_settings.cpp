#include "passes/train/optimizer_settings.h"

#include <limits>

namespace plimsoll {

OptimizerSpec default_optimizer(OptimizerKind kind) {
  OptimizerSpec spec{.kind = kind};
  switch (kind) {
    case OptimizerKind::Sgd:
    case OptimizerKind::Adam:
    case OptimizerKind::AdamW: break;
    case OptimizerKind::Adafactor:
      spec.learning_rate = 1e-2;
      spec.eps = std::numeric_limits<float>::epsilon();
      break;
    case OptimizerKind::Lion:
      spec.learning_rate = 1e-4;
      spec.beta2 = 0.99;
      break;
    case OptimizerKind::RmsProp: spec.learning_rate = 1e-2; break;
    case OptimizerKind::Adagrad:
      spec.learning_rate = 1e-2;
      spec.eps = 1e-10;
      break;
    case OptimizerKind::Lamb:
      spec.eps = 1e-6;
      spec.weight_decay = 0.01;
      break;
    case OptimizerKind::Muon:
      spec.momentum = 0.95;
      spec.nesterov = true;
      spec.weight_decay = 0.1;
      break;
  }
  return spec;
}

}  // namespace plimsoll
