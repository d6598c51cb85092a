#pragma once

// Plans of remats and copies for one graph, told in terms of another that differs in which states are on the host.

#include "passes/remat/remat_problem.h"

#include "llvm/ADT/StringMap.h"

namespace plimsoll {

// Instructions and values are known by their names: both graphs were made from one order of one graph, and may have
// copies of states that the other has not.
class RematTranslation {
 public:
  RematTranslation(const Graph& from, const GraphRematProblem& from_problem, const Graph& to,
                   const GraphRematProblem& to_problem);

  // The plan without what `to` has no instruction for, or may not run again there. Neither peak nor time is measured.
  RematPlan operator()(const RematPlan& plan) const;

  // The problem `from` with the costs that its remats and copies have at least once they are told in terms of `to`:
  // none where they may be left out.
  RematProblem at_least(RematProblem from) const;

 private:
  const RematProblem& to_;
  std::vector<int32_t> op_;        // by op of `from`; -1: there is none
  std::vector<int32_t> before_;    // by op of `from` and for the end: the op in its place
  std::vector<int32_t> value_;     // by value of `from`; -1: it is not offered there
  std::vector<int32_t> producer_;  // by value of `to`; -1: none
};

}  // namespace plimsoll
