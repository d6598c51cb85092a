#include "ir/plan/adapters.h"

#include "ir/support/strings.h"

#include <cmath>
#include <map>

namespace plimsoll {

double PlannedAdapters::scale(const PlannedAdapter& adapter) const {
  const auto number = static_cast<double>(adapter.rank);
  return adapter.alpha / (rslora ? std::sqrt(number) : number);
}

std::optional<PlannedAdapters> adapters_of(const Plan& plan) {
  PlannedAdapters adapters;
  std::map<std::string, double> alphas;  // by module
  for (const auto& [name, value] : plan.training.hyperparameters) {
    if (name == adapter_rank_number) adapters.rank = static_cast<int64_t>(value);
    if (name == adapter_alpha_number) adapters.alpha = value;
    if (llvm::StringRef module = name; module.consume_front(adapter_alpha_number_of(""))) alphas[module.str()] = value;
    if (name == adapter_dropout_number) adapters.dropout = value;
    if (name == adapter_rslora_number) adapters.rslora = value != 0;
    if (name == adapter_transposed_number) adapters.fan_in_fan_out = value != 0;
  }
  if (adapters.rank == 0) return std::nullopt;
  std::map<std::string, PlannedAdapter> by_module;
  for (const Plan* stage : plan.stages())
    for (const PlanState& state : stage->states) {
      const auto weight = parse_adapter_weight(state.init.source);
      if (state.init.kind != StateInit::Kind::Weights || !weight) continue;
      const Slot& slot = stage->slots[static_cast<size_t>(state.slot)];
      PlannedAdapter& adapter = by_module[weight->module.str()];
      adapter.module = weight->module.str();
      const Type type(slot.type.dtype, whole_shape(state.divisions, slot.type.shape));
      if (weight->matrix == AdapterMatrix::Magnitude) {
        adapter.magnitude = slot.name;
        continue;
      }
      adapter.of_embedding = weight->is_of_embedding();
      (weight->is_first() ? adapter.a : adapter.b) = slot.name;
      (weight->is_first() ? adapter.a_type : adapter.b_type) = type;
      const size_t own = weight->module.size() + adapter_suffixes[static_cast<size_t>(weight->matrix)].size();
      adapters.from_export = ends_with(slot.name, state.init.source);
      adapters.root = slot.name.substr(0, slot.name.size() - std::min(own, slot.name.size()));
    }
  for (auto& [module, adapter] : by_module) {
    adapter.rank = adapter.a_type.shape[adapter.of_embedding ? 1 : 0];
    const auto own = alphas.find(module);
    adapter.alpha = own == alphas.end() ? adapters.alpha : own->second;
    adapters.modules.push_back(std::move(adapter));
  }
  return adapters;
}

}  // namespace plimsoll
