#include "passes/budget/translate_remats.h"

#include "passes/analysis/buffer_assignment.h"

#include <algorithm>

namespace plimsoll {
namespace {

llvm::StringRef name_of(const Graph& graph, NodeId instruction) {
  return graph.value(graph.node(instruction).results[0]).name;
}

// In order, without repetitions.
template <typename Each>
void sort_once(std::vector<Each>& all) {
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
}

}  // namespace

RematTranslation::RematTranslation(const Graph& from, const GraphRematProblem& from_problem, const Graph& to,
                                   const GraphRematProblem& to_problem)
    : to_(to_problem.problem), value_(from_problem.values.size(), -1), producer_(to_problem.values.size(), -1) {
  llvm::StringMap<int32_t> ops, offered;
  for (NodeId id : instructions_of(to)) ops.try_emplace(name_of(to, id), static_cast<int32_t>(ops.size()));
  for (const OffloadOption& option : to_.offloads)
    offered[to.value(to_problem.values[option.value]).name] = option.value;
  for (int32_t o = 0; o < to_.op_count(); ++o)
    for (int32_t v : to_.ops[o].writes) producer_[v] = o;
  for (NodeId id : instructions_of(from)) {
    auto op = ops.find(name_of(from, id));
    op_.push_back(op == ops.end() ? -1 : op->second);
  }
  before_.assign(op_.size() + 1, to_.op_count());
  for (size_t o = op_.size(); o-- > 0;) before_[o] = op_[o] < 0 ? before_[o + 1] : op_[o];
  for (size_t v = 0; v < value_.size(); ++v)
    if (auto option = offered.find(from.value(from_problem.values[v]).name); option != offered.end())
      value_[v] = option->second;
}

RematPlan RematTranslation::operator()(const RematPlan& plan) const {
  RematPlan told;
  for (const Remat& remat : plan.remats) {
    const Remat there{before_[remat.before], op_[remat.op]};
    if (there.op < 0 || there.op >= there.before) continue;
    const RematOp& op = to_.ops[there.op];
    if (op.repeatable && there.before <= op.remat_until) told.remats.push_back(there);
  }
  for (const Reload& reload : plan.reloads) {
    const Reload there{before_[reload.before], value_[reload.value]};
    if (there.value >= 0 && producer_[there.value] + 1 < there.before) told.reloads.push_back(there);
  }
  sort_once(told.remats);
  sort_once(told.reloads);
  told.level_bytes = plan.level_bytes;
  return told;
}

RematProblem RematTranslation::at_least(RematProblem from) const {
  const int32_t end = from.op_count();
  std::vector<int32_t> producer(from.value_bytes.size(), -1);
  for (int32_t o = 0; o < end; ++o) {
    RematOp& op = from.ops[o];
    for (int32_t v : op.writes) producer[v] = o;
    const bool stays = op_[o] >= 0 && to_.ops[op_[o]].repeatable &&
                       before_[std::min(op.remat_until, end)] <= to_.ops[op_[o]].remat_until;
    op.cost_us = stays ? std::min(op.cost_us, to_.ops[op_[o]].cost_us) : 0;
  }
  for (OffloadOption& option : from.offloads) {
    // A reload right behind what makes the value is left out, and may come to stand there.
    const int32_t made_by = producer[option.value];
    const bool stays = value_[option.value] >= 0 && made_by + 1 < end && op_[made_by + 1] >= 0;
    if (!stays) option.to_host_us = option.to_device_us = 0;
  }
  return from;
}

}  // namespace plimsoll
