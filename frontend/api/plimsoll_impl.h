#pragma once

// Between the public names, which are plimsoll::api:: here, and those of the program.

#define PLIMSOLL_INSIDE
#include "frontend/api/plimsoll.h"

#include "ir/plan/plan.h"

namespace plimsoll::api {

// In the order of Precision.
constexpr const char* precision_names[] = {"exported", "fp32", "tf32", "bf16", "fp16", "auto", "fp8"};
Precision precision_named(llvm::StringRef name);

struct Plan::Impl {
  plimsoll::Plan plan;
};

}  // namespace plimsoll::api

namespace plimsoll {

inline api::Plan to_public(Plan plan) {
  return api::Plan(std::make_shared<const api::Plan::Impl>(api::Plan::Impl{std::move(plan)}));
}
api::TensorSpec to_public(const std::string& name, const Type& type);
api::Error to_public(Status failure);
inline api::Expected<void> to_public_status(Status status) {
  return status ? to_public(std::move(status)) : api::Expected<void>();
}
// A failure of the caller's own function on its way through the program.
Status to_status(const api::Expected<void>& answer);

}  // namespace plimsoll
