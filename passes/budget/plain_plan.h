#pragma once

// A program's plan without remats and copies. Most questions about its bytes are decided by bounds, so its layouts are
// searched only once they are not.

#include "ir/plan/plan.h"

#include <functional>
#include <mutex>
#include <optional>

namespace plimsoll {

class PlainPlan {
 public:
  explicit PlainPlan(Plan plan) : first_(std::move(plan)) {}
  // `search` gives the same plan with layouts that are as high as those of `quick`, or lower.
  PlainPlan(Plan quick, std::function<Plan()> search) : first_(std::move(quick)), search_(std::move(search)) {}

  // Instructions, times and what persists are those of the plan; the arena is as high, or higher.
  const Plan& first() const { return first_; }
  // May be called by several threads.
  const Plan& plan() const;
  int64_t min_bytes() const;  // no layout promises less

  // What `ask` says of the bytes that the plan promises. It must say the same of all bytes between two of which it says
  // the same.
  template <typename Ask>
  auto decide(Ask ask) const {
    auto of_least = ask(min_bytes());
    return of_least == ask(first_.promised_bytes()) ? of_least : ask(plan().promised_bytes());
  }
  bool is_within(int64_t budget_bytes) const {
    return decide([&](int64_t bytes) { return bytes <= budget_bytes; });
  }

 private:
  Plan first_;
  std::function<Plan()> search_;  // null: the first is the plan
  mutable std::optional<Plan> searched_;
  mutable std::once_flag is_searched_;
};

}  // namespace plimsoll
