#include "passes/remat/remat_ops.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

namespace plimsoll::remat {

RematOps::RematOps(const RematProblem& problem)
    : problem_(&problem),
      producer_(problem.value_bytes.size(), -1),
      reload_of_(problem.value_bytes.size(), -1),
      clock_us_(1, 0),
      all_compute_(problem.offloads.empty() &&
                   llvm::all_of(problem.ops, [](const RematOp& op) { return op.engine == Engine::Compute; })) {
  for (int32_t o = 0; o < problem.op_count(); ++o)
    for (int32_t v : op(o).writes) producer_[v] = o;
  add_copies();
  for (int32_t id = 0; id < id_count(); ++id) cost_us_.push_back(id == problem.op_count() ? 0 : op(id).cost_us);
  for (const RematOp& op : problem.ops) clock_us_.push_back(clock_us_.back() + problem.compute_us(op));
}

void RematOps::add_copies() {
  std::vector<OffloadOption> options = problem_->offloads;
  std::sort(options.begin(), options.end(), [&](const OffloadOption& a, const OffloadOption& b) {
    return std::pair(producer(a.value), a.value) < std::pair(producer(b.value), b.value);
  });
  RematOp offload, reload;
  offload.engine = Engine::ToHost;
  reload.engine = Engine::ToDevice;
  for (const OffloadOption& option : options) {
    offload.cost_us = option.to_host_us;
    offload.reads.assign(1, option.value);
    copies_.push_back(offload);
  }
  for (const OffloadOption& option : options) {
    reload.cost_us = option.to_device_us;
    reload.writes.assign(1, option.value);
    copies_.push_back(reload);
    reload_of_[option.value] = problem_->op_count() + static_cast<int32_t>(copies_.size());
  }
}

bool RematOps::touches(int32_t id, int32_t value) const {
  if (id == problem_->op_count()) return false;
  return llvm::is_contained(op(id).reads, value) || llvm::is_contained(op(id).writes, value);
}

int32_t RematOps::producer_count(int32_t position) const {
  auto offloads = llvm::ArrayRef<RematOp>(copies_).take_front(problem_->offloads.size());
  auto later = std::lower_bound(offloads.begin(), offloads.end(), position,
                                [&](const RematOp& offload, int32_t s) { return producer(offload.reads[0]) < s; });
  return std::min(position, problem_->op_count()) + static_cast<int32_t>(later - offloads.begin());
}

int32_t RematOps::producer_at(int32_t index, int32_t position) const {
  int32_t ops = std::min(position, problem_->op_count());
  return index < ops ? index : index - ops + problem_->op_count() + 1 + offload_count();
}

}  // namespace plimsoll::remat
