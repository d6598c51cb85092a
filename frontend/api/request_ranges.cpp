#include "frontend/api/request_ranges.h"

#include "passes/train/optimizer_settings.h"

#include <cmath>

namespace plimsoll {

Status check_ranges(const CompileRequest& request) {
  struct Range {
    std::string name;
    double value, min, below;
  };
  const TrainingRequest& job = request.training;
  const OptimizerSpec& optimizer = job.optimizer;
  std::vector<Range> ranges = {{"the norm to clip gradients to", job.clip_grad_norm, 0, INFINITY},
                               {"the value to clip gradients to", job.clip_grad_value, 0, INFINITY},
                               {"the decay of the mean of weights", job.ema, 0, 1},
                               {"the factor of the rate from layer to layer", job.layer_rate, 0, INFINITY},
                               {"the first loss scale", job.first_loss_scale, 1, INFINITY}};
  for (const OptimizerSetting& setting : optimizer_settings)
    if (setting.applies_to(optimizer.kind))
      ranges.push_back(
          {setting.name.str(), optimizer.*setting.value, setting.min, setting.below > 0 ? setting.below : INFINITY});
  for (const ParameterGroup& group : job.groups) {
    if (group.rate) ranges.push_back({"the rate of group " + group.pattern, *group.rate, 0, INFINITY});
    if (group.weight_decay)
      ranges.push_back({"the weight decay of group " + group.pattern, *group.weight_decay, 0, INFINITY});
  }
  auto add_count = [&](const std::string& name, int64_t value, int min) {
    ranges.push_back({name, static_cast<double>(value), static_cast<double>(min), INFINITY});
  };
  for (const auto& [name, size] : request.import.dims) add_count("dimension " + name, size, 1);
  const AdapterRequest& adapters = job.adapters;
  add_count("the rank of adapters", adapters.rank, 0);
  ranges.push_back({"the alpha of adapters", adapters.alpha, 0, INFINITY});
  ranges.push_back({"the dropout of adapters", adapters.dropout, 0, 1});
  add_count("the batch", job.batch, 0);
  // Its divisors are looked for one by one up to its root.
  ranges.push_back({"the global batch", static_cast<double>(request.global_batch), 0, 0x1p48});
  add_count("the number of micro-batches per update", job.accumulate, 1);
  add_count("the number of ranks", job.mesh.ranks(), 1);
  ranges.push_back({"the ZeRO stage", static_cast<double>(job.zero), 0, 4});
  add_count("the number of chunks of the batch", job.split, 0);
  add_count("the budget", job.budget_bytes, 0);
  for (size_t rank = 0; rank < request.budgets.size(); ++rank)
    add_count("the budget of rank " + std::to_string(rank), request.budgets[rank], 1);
  add_count("the host budget", job.host_budget_bytes, 0);
  auto text = [](double number) { return llvm::StringRef(std::to_string(number)).rtrim('0').rtrim('.').str(); };
  for (const Range& range : ranges)
    if (!(range.value >= range.min && range.value < range.below))
      return usage_error(range.name + " is " + text(range.value) + ", it must be at least " + text(range.min) +
                         (std::isfinite(range.below) ? " and below " + text(range.below) : ""));
  const bool describes_adapters =
      adapters.alpha > 0 || adapters.dropout > 0 || adapters.rslora || adapters.dora || !adapters.targets.empty();
  if (describes_adapters && !adapters.wanted())
    return usage_error("adapters are described and have no rank; give one, such as --lora-rank 8");
  if (!job.quantize.skip.empty() && job.quantize.format == WeightFormat::AsTrained)
    return usage_error("weights that are not to be quantised are named, and none are; give a format, such as nf4");
  if (optimizer.kind == OptimizerKind::Lamb && optimizer.weight_decay == 0)
    return usage_error("lamb adapts the rate of parameters with weight decay, and there is none; use adamw");
  if (job.moments != Moments::F32 && !has_moments(optimizer.kind))
    return usage_error("moments in " + moment_formats[static_cast<size_t>(job.moments)] + ": " +
                       optimizer_name(optimizer.kind) + " has none of Adam's; they are of adam, adamw, lamb and muon");
  if (request.max_batch + request.best_batch + (request.global_batch > 0) > 1)
    return usage_error("a global batch, the largest and the best batch that fits exclude each other");
  if (request.chooses_batch() && job.batch > 0)
    return usage_error("a batch excludes a global batch, the largest and the best batch, which choose the batch");
  if (request.global_batch > 0 && job.accumulate > 1)
    return usage_error("a number of micro-batches per update excludes a global batch, which chooses it");
  return Status::success();
}

}  // namespace plimsoll
