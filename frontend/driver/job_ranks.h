#pragma once

// The ranks of a job, as a command of one of them sees them. Where the job cannot go on, one rank tells people why; the
// others end without words and with the same exit code.

#include "frontend/driver/commands.h"
#include "runtime/session.h"

namespace plimsoll {

class JobRanks {
 public:
  // Connects the ranks that a launcher has started, and does `work` as one of them. From then on a rank that is lost or
  // fails ends the job.
  static Status run(Console& console, double patience_s, llvm::function_ref<Status(JobRanks& ranks)> work);

  JobRanks(const JobRanks&) = delete;
  JobRanks& operator=(const JobRanks&) = delete;

  int64_t count() const { return ranks_ ? ranks_->ranks() : 1; }
  bool are_several() const { return count() > 1; }
  int64_t rank() const { return ranks_ ? ranks_->rank() : 0; }
  bool is_first() const { return rank() == 0; }
  Communicator* communicator() const { return ranks_.get(); }  // null: this process is the only one

  // What each rank finds by itself, before it waits for others: all of them call it, and where one failed, all do.
  Status agreed(Status own);
  // All ranks call it, once they have agreed on what they found by themselves. The session lives as long as this
  // object.
  Result<Session*> open_session(Plan plan, ExecutorOptions options);

  // This rank cannot go on: tells the others. run() does it too, after `work` has returned.
  Status abandoned(Status result);

 private:
  explicit JobRanks(std::unique_ptr<Communicator> ranks) : ranks_(std::move(ranks)) {}
  std::string own_name() const { return "rank " + std::to_string(rank()); }
  std::function<void(const std::string& failure)> teller() const;
  Status watch(double patience_s);
  Status ended(Status failure, Console& console);

  std::shared_ptr<Communicator> ranks_;
  RankProgress progress_;             // without a session there are no steps
  std::unique_ptr<RankWatch> watch_;  // until there is a session, which has its own
  std::unique_ptr<Session> session_;
  bool has_told_ = false;  // all ranks know of the failure
};

}  // namespace plimsoll
