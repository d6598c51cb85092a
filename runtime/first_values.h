#pragma once

// First values of a model that is trained from nothing, as PyTorch and transformers draw them by kind of layer. Which
// layer a weight belongs to is read off the plan: the op that reads it in forward, and at which operand.

#include "ir/plan/plan.h"

#include "llvm/ADT/StringMap.h"

namespace plimsoll {

struct FirstValue {
  enum class Kind : uint8_t {
    Unknown,   // no kind of layer is known that reads it so
    Constant,  // `scale` everywhere
    Index,     // 0, 1, 2, ... along the last dimension
    Uniform,   // from -scale to scale
    Normal,    // around 0, with the deviation `scale`
  } kind = Kind::Unknown;
  double scale = 0;
  std::string reader;  // "add that makes %h", where the kind is unknown
};

// By the name of the initializer, for every weight of all stages.
//   linear, conv      uniform within 1 / sqrt(fan-in), biases too, as nn.Linear and nn.Conv reset themselves; also
//                     those whose weight a norm standardises first
//   gather            N(0, 1), as nn.Embedding; also an [n, m] "NAME.weight" that is added, as positions are
//   norms             scales and running variances 1, biases and running means 0; scales also where numbers multiply
//                     them first
//   in_proj_weight    uniform by Glorot and Bengio, in_proj_bias and out_proj.bias 0, as nn.MultiheadAttention
//   prelu             0.25
//   adapters (LoRA)   as PEFT: A uniform within 1 / sqrt(fan-in), B 0; of an embedding A 0 and B N(0, 1)
// Where source lines of the model are in a file modeling_*.py, which is transformers', linear, conv and gather have
// N(0, 0.02) and their biases 0; c_proj.weight of GPT-2 has that over the root of their number. A matrix that both
// embeds and projects has N(0, 0.02), since who ties them draws them so.
llvm::StringMap<FirstValue> first_values_of(const Plan& plan);

}  // namespace plimsoll
