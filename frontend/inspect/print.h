#pragma once

// Every way of showing a plan to a person or a program: `plimsoll inspect` is these functions.

#include "ir/plan/plan.h"

#include "llvm/Support/raw_ostream.h"

namespace plimsoll {

struct ReportOptions {
  int columns = 100;
  bool color = false;  // ANSI colours, for terminals
};

// What fits where: budget, bytes by category, the memory curve, the largest values, time, decisions.
void print_report(llvm::raw_ostream& out, const Plan& plan, const ReportOptions& options = {});

// A plan of the same job under another budget, as a row.
struct FrontierRow {
  int64_t budget_bytes = 0, needs_bytes = 0;
  double step_us = 0;
  std::string batch, with;  // "8", "recompute 34 values, +5.2 % time"
};

// The report as one HTML file without outside resources, `front` among it.
void print_plan_html(llvm::raw_ostream& out, const Plan& plan, llvm::ArrayRef<FrontierRow> front = {});

// The stable interface of docs/interfaces.md.
void print_plan_json(llvm::raw_ostream& out, const Plan& plan);

// The plan as text (docs/plan_form.md): every slot and instruction, a line each.
void print_plan_text(llvm::raw_ostream& out, const Plan& plan);

// Everything about the values called `name`, or made by the model's node of that name. An unknown name is an
// error with the nearest known ones.
Status print_why(llvm::raw_ostream& out, const Plan& plan, llvm::StringRef name, const ReportOptions& options = {});

// What `after` does otherwise than `before`.
void print_diff(llvm::raw_ostream& out, const Plan& before, const Plan& after, const ReportOptions& options = {});

}  // namespace plimsoll
