#pragma once

// Plans of one job side by side: what they need, what they do for it and what that costs.

#include "frontend/driver/commands.h"
#include "frontend/inspect/print.h"

namespace plimsoll {

struct SplitChosen {
  int64_t parts;
  std::string from;  // the value that they are parts of
};
std::optional<SplitChosen> split_of(const Plan& plan);  // none where the batch is whole
std::string to_string(const SplitChosen& split);        // "8 parts from h.3"

// "plain", or "8 parts from h.3; recompute 34 values, +5.2 % time".
std::string how_it_fits(const Plan& plan);

// The rows of `compile --pareto`, in the order they come.
class FrontTable {
 public:
  void add(const Plan& plan);
  void print(Console& console) const;  // nothing where there is no row
  llvm::ArrayRef<FrontierRow> rows() const { return rows_; }

 private:
  std::vector<FrontierRow> rows_;
};

}  // namespace plimsoll
