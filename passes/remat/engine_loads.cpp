#include "passes/remat/engine_loads.h"

#include "ir/machine/duplex_link.h"

#include <algorithm>

namespace plimsoll::remat {

EngineLoads::EngineLoads(const RematProblem& problem)
    : shares_(problem.duplex_shares), interference_(problem.copy_interference) {
  for (const RematOp& op : problem.ops) {
    compute_us_ += problem.compute_us(op);
    if (op.engine != Engine::Compute) (op.engine == Engine::ToHost ? to_host_us_ : to_device_us_) += op.cost_us;
  }
}

void EngineLoads::change(Engine engine, double us, double interference_us) {
  placed_us_ += us;
  if (engine == Engine::Compute) {
    remat_us_ += us;
  } else {
    (engine == Engine::ToHost ? to_host_us_ : to_device_us_) += us;
    copied_us_ += us;
    remat_us_ += interference_us;
  }
}

double EngineLoads::added_us() const {
  return std::max(remat_us_, min_copying_us(to_host_us_, to_device_us_, shares_) - compute_us_) + hidden_price_us();
}

}  // namespace plimsoll::remat
