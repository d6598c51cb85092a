#pragma once

// Writes one checkpoint at a time in a thread, while training goes on.

#include "ir/support/status.h"

#include <atomic>
#include <functional>
#include <optional>
#include <thread>

namespace plimsoll {

class CheckpointWriter {
 public:
  CheckpointWriter() = default;
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Starts the work; the one before must have been finished.
  void start(std::function<Status()> work);
  bool was_started() const { return thread_.joinable(); }
  bool is_done() const { return done_; }
  // Waits for the work and hands out its result.
  Status finish();

 private:
  std::thread thread_;
  std::atomic<bool> done_{false};
  std::optional<Status> result_;  // the thread writes it before `done_`
};

}  // namespace plimsoll
