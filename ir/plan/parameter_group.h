#pragma once

// Optimizers by name, and groups of parameters whose updates differ from the others'.

#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <optional>
#include <string>

namespace plimsoll {

enum class OptimizerKind : uint8_t { Sgd, Adam, AdamW, Adafactor, Lion, RmsProp, Adagrad, Lamb, Muon };
inline constexpr llvm::StringLiteral optimizer_names[] = {"sgd",     "adam",    "adamw", "adafactor", "lion",
                                                          "rmsprop", "adagrad", "lamb",  "muon"};  // by kind
inline llvm::StringRef optimizer_name(OptimizerKind kind) { return optimizer_names[static_cast<size_t>(kind)]; }

// What the updates of some parameters do otherwise. Of several groups that match a parameter, the first that says
// something about a setting decides it.
struct ParameterGroup {
  std::string pattern;         // a regular expression over names, or norms_and_biases
  std::optional<double> rate;  // multiple of the learning rate
  std::optional<double> weight_decay;
  std::optional<OptimizerKind> optimizer;  // with muon alone: which of muon and adamw
  int64_t rank_below = 0;                  // not 0: instead of the pattern, all parameters with fewer dimensions
  friend bool operator==(const ParameterGroup&, const ParameterGroup&) = default;
};

}  // namespace plimsoll
