#include "ir/plan/lengths.h"

#include <algorithm>

namespace plimsoll {

std::string shorter_step_name(int64_t length) { return (train_step_function + "." + llvm::Twine(length)).str(); }

std::optional<int64_t> length_of_shorter_step(llvm::StringRef function) {
  int64_t length = 0;
  if (!function.consume_front(train_step_function) || !function.consume_front(".")) return std::nullopt;
  return function.getAsInteger(10, length) || length < 1 ? std::nullopt : std::optional(length);
}

std::vector<int64_t> shorter_lengths(const Plan& plan) {
  std::vector<int64_t> lengths;
  for (const PlanFunction& function : plan.functions)
    if (const std::optional<int64_t> length = length_of_shorter_step(function.name)) lengths.push_back(*length);
  std::sort(lengths.begin(), lengths.end());
  return lengths;
}

}  // namespace plimsoll
