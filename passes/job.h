#pragma once

// What the caller wants of a training job, as data: the command line and the C++ interface fill it in.

#include "ir/type.h"

#include <string>
#include <vector>

namespace plimsoll {

enum class OptimizerKind : uint8_t { Sgd, Adam, AdamW };

struct OptimizerSpec {
  OptimizerKind kind = OptimizerKind::AdamW;
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;  // adam, adamw
  double momentum = 0, dampening = 0;             // sgd
  bool nesterov = false;
  double weight_decay = 0;
};

enum class ImageLayout : uint8_t { Auto, ChannelsFirst, ChannelsLast };  // Auto: what convolutions are faster in

enum class MasterWeights : uint8_t { Auto, On, Off };  // Auto: f32 masters for 16-bit parameters

struct TrainingRequest {
  std::string loss;                // "" | OUTPUT | cross-entropy:LOGITS:LABELS | mse:A:B | bce:A:B
  std::vector<std::string> train;  // regular expressions over state names; empty: every parameter
  std::vector<std::string> freeze;
  OptimizerSpec optimizer;
  int64_t accumulate = 1;              // micro-batches an update
  double clip_grad_norm = 0;           // 0: off
  double first_loss_scale = 65536;     // fp16: the gradients' factor until an overflow halves it
  int64_t batch = 0;                   // 0: as exported
  std::string precision = "exported";  // or fp32, tf32, bf16, fp16; recorded in the plan
  std::string precision_rules;         // what a --precision-file says, see passes/target/precision_rules.h
  MasterWeights master_weights = MasterWeights::Auto;
  ImageLayout layout = ImageLayout::Auto;
  int64_t budget_bytes = 0;  // 0: the device's memory
  bool recompute = true;     // repeat instructions where the budget asks for it
  int64_t split =
      0;  // parts of the batch that what follows some value comes in; 0: where the budget asks for it, 1: never
  std::string split_from;  // that value; empty: the one that takes least time
  bool offload = true;     // let states and values wait in host memory where the budget asks for it
  double effort = 1;  // how much work the searches for repeats and for a layout may be, as a multiple of what is usual
  int64_t host_budget_bytes = 0;  // of that memory; 0: not limited
};

}  // namespace plimsoll
