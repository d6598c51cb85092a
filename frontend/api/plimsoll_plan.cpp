#include "frontend/api/plimsoll_impl.h"
#include "frontend/inspect/print.h"
#include "ir/plan/check.h"
#include "ir/plan/serialize.h"
#include "ir/plan/summary.h"

#include "llvm/Support/raw_ostream.h"

namespace plimsoll {

api::TensorSpec to_public(const std::string& name, const Type& type) {
  return {name, static_cast<api::DType>(type.dtype), {type.shape.begin(), type.shape.end()}, type.bytes()};
}

api::Error to_public(Status failure) {
  const Diag diag = take_diag(std::move(failure));
  return {static_cast<api::Fault>(diag.fault()), diag.text()};
}

Status to_status(const api::Expected<void>& answer) {
  if (answer) return Status::success();
  return llvm::make_error<Diag>(static_cast<Fault>(answer.error().fault), answer.error().message);
}

}  // namespace plimsoll

namespace plimsoll::api {
namespace {

static_assert(static_cast<int>(DType::Bool) + 1 == dtype_count && DType::I64 == DType(plimsoll::DType::I64));
static_assert(Fault::System == Fault(plimsoll::Fault::System) && Fault::Model == Fault(plimsoll::Fault::Model));

template <typename Print>
std::string printed(Print print) {
  std::string text;
  llvm::raw_string_ostream out(text);
  print(out);
  return text;
}

Result<plimsoll::Plan> load_checked(const std::string& path) {
  Result<plimsoll::Plan> plan = load_plan(path);
  if (!plan) return plan;
  if (Status s = check_plan(*plan)) return in_context(path, std::move(s));
  return plan;
}

}  // namespace

Precision precision_named(llvm::StringRef name) {
  return static_cast<Precision>(llvm::find(precision_names, name) - std::begin(precision_names));
}

Expected<Plan> Plan::load(const std::string& path) noexcept {
  Result<plimsoll::Plan> plan = load_checked(path);
  if (!plan) return to_public(plan.takeError());
  return to_public(std::move(*plan));
}

Expected<void> Plan::save(const std::string& path) const noexcept {
  return to_public_status(save_plan(impl_->plan, path));
}

const std::string& Plan::device() const noexcept { return impl_->plan.device.name; }
std::vector<std::string> Plan::devices() const noexcept {
  std::vector<std::string> names;
  for (int64_t rank = 0; rank < impl_->plan.mesh.ranks(); ++rank) names.push_back(impl_->plan.device_of(rank).name);
  return names;
}
int64_t Plan::batch() const noexcept { return impl_->plan.training.batch; }
int64_t Plan::accumulate() const noexcept { return impl_->plan.training.accumulate; }
Precision Plan::precision() const noexcept { return precision_named(impl_->plan.training.precision); }
int64_t Plan::promised_bytes() const noexcept { return impl_->plan.promised_bytes(); }
int64_t Plan::promised_bytes(int64_t rank) const noexcept {
  const plimsoll::Plan& plan = impl_->plan;
  return plan.stages()[static_cast<size_t>(plan.mesh.coordinate(rank, MeshAxis::Stage))]->promised_bytes();
}
double Plan::predicted_step_us() const noexcept { return impl_->plan.predicted_step_us; }

std::vector<Arena> Plan::arenas() const noexcept {
  std::vector<Arena> arenas;
  for (const plimsoll::Arena& arena : impl_->plan.arenas) {
    Arena& shown = arenas.emplace_back(Arena{arena.space == MemorySpace::Host,
                                             arena.bytes,
                                             arena.persistent_bytes,
                                             arena.peak_live_bytes,
                                             arena.budget_bytes,
                                             {}});
    const SpaceSummary summary = summarize_space(impl_->plan, arena.space);
    for (int i = 0; i < category_count; ++i)
      if (int64_t bytes = summary.at_peak[static_cast<Category>(i)])
        shown.at_peak[category_name(static_cast<Category>(i)).str()] = bytes;
  }
  return arenas;
}

std::vector<TensorSpec> Plan::inputs() const noexcept {
  std::vector<TensorSpec> specs;
  for (const PlanInput& input : impl_->plan.functions.front().inputs)
    specs.push_back(to_public(input.name, impl_->plan.slots[input.slot].type));
  return specs;
}

std::vector<StateSpec> Plan::states() const noexcept {
  std::vector<StateSpec> specs;
  for (const PlanState& state : impl_->plan.states) {
    const Slot& slot = impl_->plan.slots[state.slot];
    specs.push_back({to_public(slot.name, impl_->plan.model_type(state)), state.trained});
  }
  return specs;
}

std::string Plan::report(int columns) const noexcept {
  return printed([&](llvm::raw_ostream& out) { print_report(out, impl_->plan, {.columns = columns}); });
}

std::string Plan::to_text() const noexcept {
  return printed([&](llvm::raw_ostream& out) { print_plan_text(out, impl_->plan); });
}

std::string Plan::to_json() const noexcept {
  return printed([&](llvm::raw_ostream& out) { print_plan_json(out, impl_->plan); });
}

std::string Plan::to_html() const noexcept {
  return printed([&](llvm::raw_ostream& out) { print_plan_html(out, impl_->plan); });
}

Expected<std::string> Plan::why(const std::string& name) const noexcept {
  Status status = Status::success();
  std::string text = printed([&](llvm::raw_ostream& out) {
    llvm::consumeError(std::move(status));
    status = print_why(out, impl_->plan, name);
  });
  if (status) return to_public(std::move(status));
  return text;
}

std::string Plan::diff(const Plan& after) const noexcept {
  return printed([&](llvm::raw_ostream& out) { print_diff(out, impl_->plan, after.impl_->plan); });
}

}  // namespace plimsoll::api
