#pragma once

#include "ir/plan/check.h"

#include <doctest/doctest.h>

namespace plimsoll::testing {

// Checks that the plan's checker refuses it, in words that hold `message`.
inline void check_refused(const Plan& plan, llvm::StringRef message) {
  Status refused = check_plan(plan);
  REQUIRE(bool(refused));
  const std::string text = take_diag(std::move(refused)).text();
  CAPTURE(text);
  CHECK(llvm::StringRef(text).contains(message));
}

}  // namespace plimsoll::testing
