#pragma once

// A pass is a record of facts, which the pass manager checks, and a function on a graph. The function keeps no state
// between runs, reads no environment and prints nothing.

#include "ir/graph.h"
#include "ir/plan/plan.h"

#include <limits>
#include <map>
#include <variant>

namespace plimsoll {

class PassContext;
struct PlanDraft;  // passes/analysis/plan_draft.h

// Where in a graph's life a pass may run.
enum class Stage : uint8_t {
  Forward,  // before differentiation: every node is in the forward phase
  Any,
};

// An option that a step of a pipeline may carry. It has the type of its default: a whole number, which may be written
// with a unit of bytes, or text.
struct PassOption {
  llvm::StringLiteral name;
  std::variant<int64_t, llvm::StringLiteral> otherwise;
  llvm::StringLiteral summary;
  int64_t min = 0, max = std::numeric_limits<int64_t>::max();  // of a number
};

using OptionValue = std::variant<int64_t, std::string>;
using OptionValues = std::map<std::string, OptionValue>;

struct PassInfo {
  llvm::StringLiteral name;     // "fold-constants"; the file is fold_constants.cpp
  llvm::StringLiteral summary;  // one line
  Stage stage = Stage::Any;
  bool keeps_result = true;  // outputs and updates are those of before, up to rounding; file tests hold it to that
  llvm::ArrayRef<PassOption> options = {};
  // True: something changed. A pass has one of the two: a planning step works on a function of a program and what is
  // planned for it, every other pass on one graph.
  Result<bool> (*run)(Graph& graph, PassContext& context) = nullptr;
  Result<bool> (*plan)(PlanDraft& draft, size_t function, PassContext& context) = nullptr;
};

#define PLIMSOLL_PASS(name) extern const PassInfo pass_##name;
#include "passes/pass/passes.def"
#undef PLIMSOLL_PASS

// The list is passes.def.
llvm::ArrayRef<const PassInfo*> all_passes();
const PassInfo* find_pass(llvm::StringRef name);  // null when there is none

// A pass gets its options from here besides the graph, and leaves numbers and reasons here.
class PassContext {
 public:
  PassContext(const PassInfo& pass, OptionValues options) : pass_(pass), options_(std::move(options)) {}

  // The step's value, else the record's default. The record must list the option with this type.
  int64_t number(llvm::StringRef option) const;
  std::string text(llvm::StringRef option) const;

  // Shown where the graph is printed after the pass: "folded 12". Counting 0 shows nothing.
  void count(llvm::StringRef what, int64_t n = 1) { counters[what.str()] += n; }
  // A choice and the numbers that decided it; it ends in the plan.
  void decide(llvm::StringRef subject, llvm::StringRef choice, llvm::StringRef reason) {
    decisions.push_back({pass_.name.str(), subject.str(), choice.str(), reason.str()});
  }
  // A line for whoever looks at this pass alone; tests check it.
  void report(const llvm::Twine& line) { lines.push_back(line.str()); }

  std::map<std::string, int64_t> counters;
  std::vector<Decision> decisions;
  std::vector<std::string> lines;

 private:
  const PassInfo& pass_;
  OptionValues options_;
};

}  // namespace plimsoll
