#include "passes/budget/plain_forms.h"

#include "ir/support/parallel.h"
#include "passes/budget/budget_report.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {
namespace {

// Minimum budgets for other forms of the whole batch, as shares of what the usual form needs: with launches that do
// two ops, which may have remats; and with copies alone, whose plans need as much.
constexpr double min_share_of_joined = 0.25, min_share_of_copies = 0.97;

int64_t share_of(int64_t bytes, double share) { return static_cast<int64_t>(share * static_cast<double>(bytes)); }

bool is_below_share(int64_t budget_bytes, const JobProgram& program, double share) {
  return program.laid_out->decide([&](int64_t bytes) { return budget_bytes < share_of(bytes, share); });
}

}  // namespace

Result<PlainForms::Forms> PlainForms::joined_within(int64_t budget_bytes) {
  if (!has_forms() || is_below_share(budget_bytes, usual_, min_share_of_joined)) return Forms();
  if (Status s = make_joined()) return s;
  return Forms(*joined_);
}

Result<std::vector<const JobProgram*>> PlainForms::with_copies_within(int64_t budget_bytes) {
  std::vector<const JobProgram*> forms;
  if (!has_forms() || is_below_share(budget_bytes, usual_, min_share_of_copies)) return forms;
  if (Status s = make_with_copies()) return s;
  const int64_t min_bytes = share_of(usual_.plain().promised_bytes(), min_share_of_copies);
  for (const std::unique_ptr<JobProgram>& form : *with_copies_)
    if (const int64_t bytes = form->plain().promised_bytes(); bytes >= min_bytes && bytes <= budget_bytes)
      forms.push_back(form.get());
  return forms;
}

Result<const JobProgram*> PlainForms::fastest_of_all(int64_t budget_bytes) {
  const auto fits = [&](const JobProgram& form) { return form.laid_out->is_within(budget_bytes); };
  if (!has_forms() || request_.mesh.ranks() > 1 || !fits(usual_)) return nullptr;
  std::optional<Status> made[2];
  parallel_for(2, [&](size_t i) { made[i].emplace(i == 0 ? make_joined() : make_with_copies()); });
  if (Status s = llvm::joinErrors(std::move(*made[0]), std::move(*made[1]))) return s;
  const auto fit = [&](const std::unique_ptr<JobProgram>& form) { return fits(*form); };
  if (!llvm::all_of(*joined_, fit) || !llvm::all_of(*with_copies_, fit)) return nullptr;
  const JobProgram* fastest = nullptr;
  const auto is_faster = [&](const JobProgram& form) {
    return !fastest || form.first_plan().predicted_step_us < fastest->first_plan().predicted_step_us;
  };
  for (const std::unique_ptr<JobProgram>& form : *joined_)
    if (is_faster(*form)) fastest = form.get();
  if (is_faster(usual_)) fastest = &usual_;
  for (const std::unique_ptr<JobProgram>& form : *with_copies_) {
    if (!is_faster(*form)) continue;
    if (least_bytes(form->first_plan()) < share_of(usual_.first_plan().promised_bytes(), min_share_of_copies))
      return nullptr;
    fastest = form.get();
  }
  return fastest;
}

// The checker follows rows of ranks along data through an op that is a product and a gelu, and what ranks along tensor
// have no further than into it.
Status PlainForms::make_joined() {
  if (joined_) return Status::success();
  joined_.emplace();
  const Program& usual = usual_.derived->draft.program;
  const bool follows = request_.mesh[MeshAxis::Tensor] == 1;
  if (!follows || !(computes(usual, "gelu") || computes(usual, "dropout"))) return Status::success();
  for (const bool keeps_copies : {false, true}) {
    if (keeps_copies && (joined_->empty() || !casts_parameters(usual))) break;
    Result<std::unique_ptr<JobProgram>> made =
        programs_.program_in({.keeps_copies = keeps_copies, .joins_launches = true});
    if (!made) return made.takeError();
    if (*made) joined_->push_back(std::move(*made));
  }
  return Status::success();
}

Status PlainForms::make_with_copies() {
  if (with_copies_) return Status::success();
  with_copies_.emplace();
  if (!casts_parameters(usual_.derived->draft.program)) return Status::success();
  Result<std::unique_ptr<JobProgram>> made = programs_.program_in({.keeps_copies = true});
  if (!made) return made.takeError();
  with_copies_->push_back(std::move(*made));
  return Status::success();
}

}  // namespace plimsoll
