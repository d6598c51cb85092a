#include "passes/budget/plain_plan.h"

namespace plimsoll {

const Plan& PlainPlan::plan() const {
  if (!search_) return first_;
  std::call_once(is_searched_, [&] { searched_ = search_(); });
  return *searched_;
}

int64_t PlainPlan::min_bytes() const {
  const Arena& arena = first_.arenas.front();
  return first_.promised_bytes() - (search_ ? arena.bytes - arena.peak_live_bytes : 0);
}

}  // namespace plimsoll
