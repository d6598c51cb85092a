#pragma once

// The data of a run: its options, how many steps its epochs take, and how long the steps wait for it.

#include "frontend/api/save_states.h"
#include "frontend/driver/commands.h"
#include "frontend/driver/decode_choice.h"

#include <deque>

namespace plimsoll {

// Reads the request into options that have the seed and the rank's rows.
Status read_data_options(const DataRequest& request, DataOptions& options);

// Host memory for decoded samples: what --cache asked for, else what the plan says.
Result<int64_t> cache_bytes_of_run(const std::string& asked, const Plan& plan);

// Where a run begins: at zero, or where a checkpoint was taken.
struct RunStart {
  uint64_t seed = 0;               // of dropout and of the order of the data
  int64_t steps = 0, batches = 0;  // done and read before
};

class RunData {
 public:
  // Every rank calls this; `ranks` may be null for one.
  Status open(const RunOptions& options, const RunStart& start, const Session& session, const DecodeChoice& decode,
              Communicator* ranks);

  BatchSource& source() { return *source_; }
  int64_t steps() const { return steps_; }  // that the run takes, with those before it
  // After a step was started: counts what it read.
  void count_started_step();
  // Tokens without padding, or samples, of the oldest step that was counted and not yet taken. Of several ranks the
  // others along the data axis count as much as this one.
  double take_items();
  llvm::StringRef item_name() const { return source_->item_name(); }

  // Called once the first step is over: its batch cannot be read ahead.
  void start_clock();
  // Share of the time since then that steps waited for data, and what to do about it; empty below 1 %.
  std::string describe_wait() const;
  std::string describe_cache() const { return source_->describe_cache(); }
  std::string describe_decoding() const { return source_->describe_decoding(); }
  // Where JPEGs are decoded, in words; empty: by the processor, as usual.
  const std::string& decoding_note() const { return decoding_note_; }
  // Device memory for decoding that is no part of the plan's promise.
  int64_t decoding_bytes() const { return decoding_bytes_; }

 private:
  Result<int64_t> count_steps(const RunOptions& options, const RunStart& start, const Plan& plan,
                              Communicator* ranks) const;

  std::unique_ptr<BatchSource> source_;
  std::string decoding_note_;
  int64_t decoding_bytes_ = 0;
  int64_t steps_ = 0;
  int64_t data_ranks_ = 1;
  int64_t items_counted_ = 0;      // of this rank
  std::deque<double> step_items_;  // of all ranks, by step
  double waited_before_s_ = 0;
  std::chrono::steady_clock::time_point clock_start_;
};

}  // namespace plimsoll
