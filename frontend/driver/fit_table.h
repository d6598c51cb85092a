#pragma once

// Shows plans of one job side by side: the bytes they need, how they fit and what that costs.

#include "frontend/driver/commands.h"
#include "frontend/inspect/print.h"

namespace plimsoll {

struct SplitChosen {
  int64_t chunks;
  std::string from;  // the value whose batch is split
};
std::optional<SplitChosen> split_of(const Plan& plan);  // none if the batch is whole
std::string to_string(const SplitChosen& split);        // "8 chunks from h.3"

// "plain", or "8 chunks from h.3; recompute 34 values, +5.2 % time".
std::string how_it_fits(const Plan& plan);

// The rows of `compile --pareto`, in the order in which they are added.
class FrontTable {
 public:
  void add(const Plan& plan);
  void print(Console& console) const;  // prints nothing if there is no row
  llvm::ArrayRef<FrontierRow> rows() const { return rows_; }

 private:
  std::vector<FrontierRow> rows_;
};

}  // namespace plimsoll
