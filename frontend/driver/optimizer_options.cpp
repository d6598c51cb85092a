#include "frontend/driver/optimizer_options.h"

#include "ir/support/did_you_mean.h"
#include "runtime/learning_rate.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

namespace plimsoll {
namespace {

constexpr llvm::StringLiteral norms_and_biases = "norms-and-biases";

Result<OptimizerKind> read_kind(llvm::StringRef option, llvm::StringRef name) {
  const auto* found = llvm::find(optimizer_names, name);
  if (found != std::end(optimizer_names)) return static_cast<OptimizerKind>(found - std::begin(optimizer_names));
  const std::vector<llvm::StringRef> names(std::begin(optimizer_names), std::end(optimizer_names));
  const std::vector<std::string> near = did_you_mean(name, names, 1);
  return usage_error(option + " " + name + ": expected " +
                     llvm::join(llvm::ArrayRef<llvm::StringRef>(names).drop_back(), ", ") + " or " +
                     names.back().str() + (near.empty() ? "" : "; did you mean " + near.front() + "?"));
}

// A group's rate is kept as a multiple, so that `run --lr` and schedules change all rates together.
Status read_rate(llvm::StringRef text, double learning_rate, ParameterGroup& group) {
  Result<RelativeRate> rate = parse_relative_rate(text);
  if (!rate) return rate.takeError();
  if (!rate->relative && learning_rate == 0)
    return usage_error("lr=" + text + " is no multiple of a learning rate of 0");
  group.rate = rate->relative ? rate->value : rate->value / learning_rate;
  return Status::success();
}

Status read_setting(llvm::StringRef text, const OptimizerSpec& spec, ParameterGroup& group) {
  const auto [name, value] = text.split('=');
  if (name == "lr") return read_rate(value, spec.learning_rate, group);
  if (name == "weight_decay") {
    double decay = 0;
    if (value.getAsDouble(decay) || !(decay >= 0))
      return usage_error("weight_decay=" + value + ": expected a number of at least 0");
    group.weight_decay = decay;
    return Status::success();
  }
  if (name != "optimizer")
    return usage_error("'" + text + "': expected lr=X, lr=0.1x, weight_decay=X or optimizer=NAME");
  Result<OptimizerKind> kind = read_kind("optimizer", value);
  if (!kind) return kind.takeError();
  if (spec.kind != OptimizerKind::Muon || (*kind != OptimizerKind::Muon && *kind != OptimizerKind::AdamW))
    return usage_error("optimizer=" + value + ": only --optimizer muon has groups with another one, which is adamw");
  group.optimizer = *kind;
  return Status::success();
}

// REGEX:NAME=VALUE,... The regular expression may hold colons.
Result<ParameterGroup> read_group(llvm::StringRef text, const OptimizerSpec& spec) {
  const auto [pattern, settings] = text.rsplit(':');
  if (pattern.empty() || settings.empty())
    return usage_error("--group " + text + ": expected REGEX:NAME=VALUE, such as '^embed:lr=0.1x,weight_decay=0'");
  ParameterGroup group{.pattern = pattern.str()};
  llvm::SmallVector<llvm::StringRef, 4> each;
  settings.split(each, ',');
  for (llvm::StringRef setting : each)
    if (Status s = read_setting(setting.trim(), spec, group))
      return in_context(("--group " + text).str(), std::move(s));
  if (pattern == norms_and_biases) group.rank_below = 2;
  return group;
}

}  // namespace

std::string option_name(const OptimizerSetting& setting) {
  std::string name = "--" + setting.name.str();
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

std::string option_help(const OptimizerSetting& setting) {
  std::string help = setting.help.str();
  if (setting.optimizers == every_optimizer) return help;
  std::vector<std::string> names;
  for (size_t kind = 0; kind < std::size(optimizer_names); ++kind)
    if (setting.applies_to(static_cast<OptimizerKind>(kind))) names.push_back(optimizer_names[kind].str());
  return help + "; for " + llvm::join(names, ", ");
}

Status read_optimizer(const OptimizerOptions& options, TrainingRequest& request) {
  Result<OptimizerKind> kind = read_kind("--optimizer", options.name);
  if (!kind) return kind.takeError();
  OptimizerSpec& spec = request.optimizer;
  spec = default_optimizer(*kind);
  for (const auto& [setting, given] : llvm::zip(optimizer_settings, options.settings)) {
    if (!given) continue;
    if (!setting.applies_to(*kind))
      return usage_error(option_name(setting) + ": " + options.name + " has no " + setting.name);
    spec.*setting.value = *given;
  }
  if (options.nesterov && !has_nesterov(*kind))
    return usage_error("--nesterov: " + options.name + " has no Nesterov momentum");
  spec.nesterov |= options.nesterov;
  for (const std::string& text : options.groups) {
    Result<ParameterGroup> group = read_group(text, spec);
    if (!group) return group.takeError();
    request.groups.push_back(std::move(*group));
  }
  for (const std::string& pattern : options.no_decay) {
    ParameterGroup group{.pattern = pattern, .weight_decay = 0};
    if (pattern == norms_and_biases) group.rank_below = 2;
    request.groups.push_back(std::move(group));
  }
  return Status::success();
}

}  // namespace plimsoll
