#pragma once

// What a checkpoint says about itself: the file checkpoint.json in its folder. It is written last and holds the
// checksums of the other files and its own, so that a folder with a valid record is whole.

#include "ir/support/status.h"

#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace plimsoll {

inline constexpr int checkpoint_format_version = 1;

// The parameters and buffers under their names in the model.
inline constexpr llvm::StringLiteral checkpoint_weights_file = "weights.safetensors";
// All other states under their names in the plan: optimizer moments, counters, random counter, loss scale.
inline constexpr llvm::StringLiteral checkpoint_states_file = "states.safetensors";
inline constexpr llvm::StringLiteral checkpoint_record_file = "checkpoint.json";

struct CheckpointFile {
  std::string name;
  int64_t bytes = 0;
  uint64_t xxh64 = 0;  // XXH64 of the bytes with seed 0, as `xxhsum -H64` prints it
};

struct CheckpointRecord {
  int64_t step = 0;           // updates done
  int64_t sequence = 0;       // the number of the checkpoint within its folder's history; the largest is the newest
  std::string time;           // when it was taken, in UTC: "2026-11-22T17:23:05Z"
  std::string model;          // file name of the model
  std::string weights_hash;   // of the weights' names and types: alike for all plans of one model
  uint64_t seed = 0;          // of dropout and of the order of the data
  int64_t batches = 0;        // that the reader has given to the job
  int64_t batch_samples = 0;  // samples of one batch, of all ranks; 0: the inputs share no count
  std::map<std::string, std::string> plan;  // how the job ran: "precision", "mesh", "optimizer"
  std::map<std::string, double> schedule;   // "learning_rate", ...; a number that is not finite is left out
  std::map<std::string, double> metrics;    // of the last step: "loss", "grad_norm", ...
  std::vector<CheckpointFile> files;
};

std::string to_json(const CheckpointRecord& record);
// Errors say what is missing or that the record's own checksum differs.
Result<CheckpointRecord> parse_checkpoint_record(llvm::StringRef text);

}  // namespace plimsoll
