#pragma once

// What a pass is: a record of facts the runner checks, and a function on a graph.
// The function keeps no state between runs, reads no environment and prints nothing.

#include "ir/graph.h"
#include "ir/plan/plan.h"

#include <map>

namespace plimsoll {

class PassContext;

// Where in a graph's life a pass may run.
enum class Stage : uint8_t {
  Forward,  // before differentiation: every node is in the forward phase
  Any,
};

struct PassOption {
  llvm::StringLiteral name, summary;
};

struct PassInfo {
  llvm::StringLiteral name;     // "fold-constants"; the file is fold_constants.cpp
  llvm::StringLiteral summary;  // one line
  Stage stage;
  bool keeps_result;                                     // outputs and updates are those of before, up to rounding
  llvm::ArrayRef<llvm::StringLiteral> never_after = {};  // passes whose work this one would undo
  llvm::ArrayRef<PassOption> options = {};
  Result<bool> (*run)(Graph& graph, PassContext& context);  // true: something changed
};

// The list is passes.def.
llvm::ArrayRef<const PassInfo*> all_passes();
const PassInfo* find_pass(llvm::StringRef name);  // null when there is none

// What a pass sees besides the graph: the options of its step, and places to leave numbers and reasons.
class PassContext {
 public:
  PassContext(llvm::StringRef pass, std::map<std::string, std::string> options)
      : pass_(pass), options_(std::move(options)) {}

  bool has_option(llvm::StringRef name) const { return options_.count(name.str()) > 0; }
  llvm::StringRef option(llvm::StringRef name, llvm::StringRef otherwise = "") const;
  Result<int64_t> int_option(llvm::StringRef name, int64_t otherwise) const;
  Result<int64_t> bytes_option(llvm::StringRef name, int64_t otherwise) const;  // "24GiB"
  Result<double> float_option(llvm::StringRef name, double otherwise) const;

  // Shown beside the pass's time: "folded 12". Counting 0 shows nothing.
  void count(llvm::StringRef what, int64_t n = 1) { counters[what.str()] += n; }
  // A choice and the numbers that decided it; it ends in the plan.
  void decide(llvm::StringRef subject, llvm::StringRef choice, llvm::StringRef reason) {
    decisions.push_back({pass_, subject.str(), choice.str(), reason.str()});
  }
  // A line for whoever looks at this pass alone; tests check it.
  void report(const llvm::Twine& line) { lines.push_back(line.str()); }

  std::map<std::string, int64_t> counters;
  std::vector<Decision> decisions;
  std::vector<std::string> lines;

 private:
  std::string pass_;
  std::map<std::string, std::string> options_;
};

}  // namespace plimsoll
