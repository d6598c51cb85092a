#pragma once

// Notices that a rank has died, stands still or has failed, and tells the others, so that nobody waits for ever: on a
// GPU a rank whose peer is gone spins inside a kernel of NCCL and looks busy. One rank tells people why the job ends:
// one that failed by itself; of a lost one rank 0, and of a lost rank 0 the next.
//
// Each rank has a thread that sends a sign of life to rank 0 over a connection of its own; rank 0's thread answers, and
// passes on what it finds. A process that ends closes its connection, one that is stopped sends no more signs, and one
// whose work stands still sends the same place again and again.

#include "runtime/comm/communicator.h"

#include "llvm/ADT/STLFunctionalExtras.h"

#include <atomic>
#include <functional>
#include <string>

namespace plimsoll {

// Where a rank's work is. The executor writes it, and the watch's thread reads it.
struct RankProgress {
  std::atomic<int64_t> runs{0};          // function runs that were started
  std::atomic<int32_t> function{-1};     // -1: outside a step
  std::atomic<int32_t> instruction{-1};  // -1: unknown
  // What the device writes itself while it runs a function: device_place(function, instruction). Null: nothing does.
  std::atomic<const volatile int32_t*> on_device{nullptr};
};
// Functions are few, and instructions fewer than 2^24.
inline int32_t device_place(int32_t function, int32_t instruction) { return (function << 24) | instruction; }

struct WatchOptions {
  double patience_s = 0;  // without a sign of life, or of progress within a step
  // Names where a rank is for messages: "instruction 17 of train_step, add that makes %loss". Of the rank's own plan,
  // which may be another than this rank's.
  std::function<std::string(int64_t rank, int32_t function, int32_t instruction)> describe;
  // Called once, by the watch's thread, when a rank is lost: makes this rank's waiting end.
  std::function<void()> interrupt;
  // Called once, by the watch's thread, where this rank is the one that tells why the job ends; null: nobody is told.
  std::function<void(const std::string& failure)> tell;
  // Called `grace_s` after a rank was lost if the watch still exists; does not return. Null: never.
  std::function<void()> give_up;
};

class RankWatch {
 public:
  static constexpr double grace_s = 5;

  virtual ~RankWatch() = default;

  // All ranks call it. `progress` must outlive the watch. The error says why ranks cannot reach each other.
  static Result<std::unique_ptr<RankWatch>> start(Communicator& ranks, const RankProgress& progress,
                                                  WatchOptions options);

  // Why others have ended the job; success while it goes on.
  virtual Status failure() const = 0;
  // What the rank's `status` means for the job: a failure that a lost rank caused is named as that, and one of its own
  // ends the others; `interrupt` then ends what this rank still waits for. Where another rank tells people why the job
  // ends, the failure keeps its fault and loses its words.
  Status agreed(
      Status status, llvm::function_ref<void()> interrupt = [] {});

  // Tells the others that this rank has failed on its own.
  virtual void report_own_failure(Fault fault) = 0;
  // After a failure of its own: is this rank the one that tells it? Of several that fail at once rank 0 hears of one
  // first, and that one does. Waits a little for what rank 0 says.
  virtual bool tells_own_failure() = 0;

 protected:
  // Does WatchOptions::tell say it on one rank?
  virtual bool one_rank_tells() const = 0;
};

// The same failure where another rank says it: its fault alone.
Status without_words(Status failure);

// Much longer than a step is predicted to take, and than the host is ever busy with something else.
double default_watch_patience_s(double predicted_step_us);

}  // namespace plimsoll
