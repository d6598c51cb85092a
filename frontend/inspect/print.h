#pragma once

// Functions that show a plan to a person or a program. `plimsoll inspect` calls them.

#include "ir/plan/measured.h"
#include "ir/plan/plan.h"

#include "llvm/Support/raw_ostream.h"

#include <optional>

namespace plimsoll {

struct ReportOptions {
  int columns = 100;
  bool color = false;  // ANSI colours, for terminals
};

// Prints the report: budget, bytes by category, memory curve, largest values, time and decisions.
void print_report(llvm::raw_ostream& out, const Plan& plan, const ReportOptions& options = {});

// One row of --pareto: a plan of the same job with another budget.
struct FrontierRow {
  int64_t budget_bytes = 0, needs_bytes = 0;
  double step_us = 0;
  std::string batch, with;  // "8", "recompute 34 values, +5.2 % time"
};

// What a run adds to the page of its plan.
struct RunOnPage {
  std::string facts_json;              // of its log folder
  std::optional<std::string> records;  // its lines of JSON; none: the page asks its server for metrics?from=BYTES
};

struct PageOptions {
  llvm::ArrayRef<FrontierRow> frontier;
  const Plan* beside = nullptr;  // another plan whose memory is drawn beside this one's; both must outlive the call
  std::string titles[2];         // of the two plans
  const RunOnPage* run = nullptr;
  const TimingCache* times = nullptr;  // measured
};

// Prints the report as one self-contained HTML file.
void print_plan_html(llvm::raw_ostream& out, const Plan& plan, const PageOptions& options = {});

// Prints the JSON that docs/interfaces.md documents.
void print_plan_json(llvm::raw_ostream& out, const Plan& plan);

// Prints a step as a trace for Perfetto and Chrome: when each instruction runs, as predicted, and the bytes in use.
void print_trace(llvm::raw_ostream& out, const Plan& plan);

// Prints the life of every value in a step as the snapshot that PyTorch's memory_viz page reads.
void print_memory_viz(llvm::raw_ostream& out, const Plan& plan);

// Prints the plan as text (docs/plan_form.md), one line per slot and instruction.
void print_plan_text(llvm::raw_ostream& out, const Plan& plan);

// Explains the values called `name`, or those of the model's node of that name. An unknown name gives an error with the
// most similar known names.
Status print_why(llvm::raw_ostream& out, const Plan& plan, llvm::StringRef name, const ReportOptions& options = {});

// Prints how `after` differs from `before`.
void print_diff(llvm::raw_ostream& out, const Plan& before, const Plan& after, const ReportOptions& options = {});

}  // namespace plimsoll
