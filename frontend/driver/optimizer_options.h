#pragma once

// The optimizer and its groups of parameters as the command line gives them.

#include "passes/train/optimizer_settings.h"

#include <array>

namespace plimsoll {

struct OptimizerOptions {
  std::string name = "adamw";
  std::array<std::optional<double>, std::size(optimizer_settings)> settings;  // in the table's order
  bool nesterov = false;
  std::vector<std::string> groups;    // REGEX:NAME=VALUE,...
  std::vector<std::string> no_decay;  // regular expressions, or norms-and-biases
};

// "--beta1" for the setting beta1.
std::string option_name(const OptimizerSetting& setting);
// Its line in the help: what it is, and for which optimizers.
std::string option_help(const OptimizerSetting& setting);

// Fills in the request's optimizer and groups. Errors (Fault::Usage) where a name is unknown, or a setting is none of
// the optimizer's.
Status read_optimizer(const OptimizerOptions& options, TrainingRequest& request);

}  // namespace plimsoll
