#pragma once

// The programs that a job may be done with, and the search for plans of each: the whole batch at once, or a region of
// the model chunk by chunk.

#include "passes/budget/fit.h"
#include "passes/budget/lean_workspaces.h"
#include "passes/derive_program.h"
#include "passes/train/split_batch.h"

#include <mutex>

namespace plimsoll {

// A program, as it is or with a region split, and its plans.
struct JobProgram {
  std::string from;   // the value behind which it is split; empty: as it is
  size_t region = 0;  // its place among the values that are tried
  int64_t chunks = 1;
  bool is_long = false;                  // too long for states on the host
  std::unique_ptr<LeanCatalog> catalog;  // null: that of the search
  size_t lean_calls = 0;                 // different ones with less workspace
  std::shared_ptr<Derived> derived;      // its device has a reserve for what the program's graphs take
  FitOptions options;
  std::optional<LoweringInput> input;
  std::shared_ptr<const PlainPlan> laid_out;  // of a short search that of the usual one, whose program outlives it
  int64_t highest_budget = 0;

  // The plain plan, or the one with quick layouts in its place where that is within the budget already.
  const Plan& first_plan() const;
  const Plan& plain() const { return laid_out->plan(); }
  double plain_us() const { return laid_out->first().predicted_step_us; }
  // May be called by several threads.
  BudgetFitter& plans() const;

 private:
  mutable std::unique_ptr<BudgetFitter> plans_;
  mutable std::once_flag is_made_;
};

// Does a step cast parameters that it trains to 16 bits?
bool casts_parameters(const Program& program);
// Does any function compute that op?
bool computes(const Program& program, llvm::StringRef op);

// Derives programs of one job and makes their plain plans.
class JobPrograms {
 public:
  JobPrograms(const ForwardModel& forward, const TrainingRequest& request, const DeviceDescription& device,
              const KernelCatalog& catalog)
      : forward_(forward), request_(request), device_(device), catalog_(catalog) {}

  // With a share of the usual search work, and less workspace for the calls in `lean`. Up to `stored_bytes` of
  // transposes of codes are states, where that is not 0. The whole batch as it is has quick layouts first.
  Result<std::unique_ptr<JobProgram>> program(const SplitChoice& choice, PassManager passes, double effort,
                                              CallKeys lean, int64_t stored_bytes = 0) const;
  // The whole batch in another form. Null where launches are to be joined and none is.
  Result<std::unique_ptr<JobProgram>> program_in(PlainForm form) const;
  Result<std::unique_ptr<JobProgram>> split_program(const SplitChoice& choice) const;
  // The same program with the work of a short search, of remats alone or with what may be on the host.
  enum class MayOffload : uint8_t { No, AsUsual };
  std::unique_ptr<JobProgram> short_program(const JobProgram& usual, MayOffload offload = MayOffload::AsUsual) const;
  bool tries_many() const { return request_.split < 1; }

 private:
  // Whether a short search does: where there are many programs, or where one is so long that it takes seconds.
  bool tries_less_of(const Program& program) const;
  Result<std::unique_ptr<JobProgram>> make(const SplitChoice& choice, PassManager passes, double effort, CallKeys lean,
                                           int64_t stored_bytes, PlainForm form) const;
  Status lay_out(JobProgram& program) const;
  Status lay_out_quickly(JobProgram& program) const;
  int64_t highest_budget(const Plan& plan) const;

  const ForwardModel& forward_;
  const TrainingRequest& request_;
  const DeviceDescription& device_;
  const KernelCatalog& catalog_;
};

}  // namespace plimsoll
