#pragma once

// Greedy descent of the peak as an object, for searches that lower it to the same limit many times.

#include "ir/support/random.h"
#include "passes/remat/remat_search.h"

#include "llvm/ADT/DenseMap.h"

namespace plimsoll::remat {

// Lowers the peak to one limit after the other. What share of its bound a candidate scored last is about what it scores
// of its bound now, so few candidates are promising after a change (Minoux 1978), nor under the next limit. In long
// schedules the changes that scored nearly as well are made too, each if it still removes as much for its time, and so
// are others of the same kind, of which few are tried before.
class Descent {
 public:
  Descent(RematSchedule& schedule, Tried tried, Chains chains = Chains::Short);

  // As `lower_peak`.
  bool lower_to(int64_t limit);
  // The same one change at a time, with scores of random height, so that each descent is another. Keeps the schedule's
  // journal. False also where the schedule then adds more than `most_us`.
  bool lower_at_random(int64_t limit, Random& random, double most_us);

 private:
  struct Candidate {
    ProgramPoint at;
    double max_gain = 0, bound = 0, max_score = 0;  // by bounds alone, and by earlier tries too
    double factor = 1;                              // of its scores
    int32_t index = -1;
    int32_t max_ops = 0;
    double score = 0;
  };

  static bool is_better(const Candidate& a, const Candidate& b);
  static void apply(RematSchedule& schedule, const Candidate& candidate) {
    RematSchedule::Chain chain(candidate.at);
    apply(schedule, candidate, chain, [] { return true; });
  }
  static void apply(RematSchedule& schedule, const Candidate& candidate, RematSchedule::Chain& chain,
                    llvm::function_ref<bool()> is_worth_it);
  Candidate next_change();  // has no score where nothing lowers the excess any more
  Candidate best_candidate();
  std::vector<Candidate> ranked_candidates();
  double try_candidate(Candidate candidate, Candidate& best);
  // Long chains take long to try, and those of ops that are alike are alike.
  bool tries_few_alike() const { return tried_ == Tried::FewAlike || (is_deep_ && is_long_); }
  llvm::ArrayRef<int32_t> limits_for(ProgramPoint at) const;
  void apply_close(const Candidate& best);
  void add_alike(const Candidate& best);

  RematSchedule& schedule_;
  int64_t limit_ = 0;
  Tried tried_;
  Chains chains_;
  bool is_long_;
  bool is_deep_ = false;                                             // nothing else lowers the excess
  Random* random_ = nullptr;                                         // null: scores are as they are
  std::vector<int32_t> kinds_;                                       // by id, where they are asked for
  double excess_ = 0;                                                // before the change that is looked for
  std::vector<Candidate> ranked_;                                    // in this round: all, and
  std::vector<Candidate> scored_;                                    // those that were tried and may be best
  llvm::DenseMap<std::pair<int32_t, int32_t>, double> last_shares_;  // of their bounds that candidates scored, by point
};

}  // namespace plimsoll::remat
