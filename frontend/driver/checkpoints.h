#pragma once

// The checkpoints of a run: which one it resumes, when the next is due, what is said about them. Every rank has one of
// these; the first rank writes.

#include "frontend/driver/best_evaluation.h"
#include "frontend/driver/machine_needs.h"
#include "frontend/driver/run_data.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/checkpoint/checkpoint_writer.h"
#include "runtime/checkpoint/saved_states.h"
#include "runtime/checkpoint/snapshot.h"

#include <chrono>
#include <limits>

namespace plimsoll {

class Checkpoints {
 public:
  Checkpoints(const CheckpointOptions& options, Console& console) : options_(options), console_(console) {}

  // Reads the options; before anything is loaded.
  Status check_options();
  // Makes and locks the folder, on the first rank.
  Status open_folder();
  // The disk for all checkpoints that are kept and the one that is written before the oldest is removed, less those
  // that the folder has; none where it is not open.
  std::optional<DiskNeed> disk_need(int64_t snapshot_bytes) const;
  // Finds the checkpoint to resume and takes the memory of snapshots, before the first step. The session must outlive
  // this. `seed` is what --seed says.
  Status open(Session& session, std::optional<uint64_t> seed);

  bool resumes() const { return resumed_.has_value(); }
  const RunStart& start() const { return start_; }
  // First values of a resumed run. `weights` has those that the checkpoint lacks; null: there is no such file.
  Status restore(const Weights* weights);

  // What the evaluations of the resumed run came to; none where it had none.
  std::optional<BestEvaluation> resumed_best() const;
  // After an evaluation. The checkpoint of the best one is taken and stays.
  void note_evaluation(const BestEvaluation& best) { best_ = best; }

  // No step beyond this one may be started until a checkpoint is taken.
  int64_t next_step() const { return next_step_; }
  // After each finished step: takes a checkpoint where it is due. `started` counts the updates that were started.
  Status after_step(const StepMetrics& metrics, int64_t started);
  // Whether a signal asked for the end and the last checkpoint is taken.
  bool stops() const { return stop_requested_ && taken_step_ == last_.step; }
  // After the last step: takes a checkpoint if there is none of it.
  Status take_last();
  // Waits for the writer, and says how long training waited for checkpoints. A failure of the last write is an error.
  Status finish();

 private:
  using Clock = std::chrono::steady_clock;

  bool is_first_rank() const { return session_->rank() == 0; }
  bool writes() const { return !options_.folder.empty(); }
  Status find_resumed();
  Result<std::optional<Checkpoint>> choose_resumed();
  Status reserve();
  void resume_reader();
  void choose_seed(std::optional<uint64_t> asked);
  Status take();
  void collect();
  CheckpointRecord record() const;
  void set_next_step();

  const CheckpointOptions& options_;
  Console& console_;
  Session* session_ = nullptr;
  int64_t every_steps_ = 0;  // 0: by time
  double every_seconds_ = 0;
  RunStart start_;

  std::optional<Checkpoint> resumed_;
  std::optional<CheckpointStates> states_;

  std::optional<CheckpointFolder> folder_;  // on the first rank; the writer's while it works
  Snapshot snapshot_;
  StepMetrics last_;
  std::optional<BestEvaluation> best_;
  int64_t taken_step_ = 0;  // of the last checkpoint
  int64_t next_step_ = std::numeric_limits<int64_t>::max();
  Clock::time_point taken_at_;
  int64_t taken_ = 0;    // checkpoints of this run
  double waited_s_ = 0;  // of training: for snapshots, and for writes that were not done when the next was due
  bool stop_requested_ = false;
  std::optional<Diag> failure_;  // of the last write
  CheckpointWriter writer_;      // the last member: its thread uses the others
};

}  // namespace plimsoll
