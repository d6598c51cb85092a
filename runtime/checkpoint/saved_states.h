#pragma once

// The states of a checkpoint for a session. Its plan may be another one of the same model: states of other precision
// are converted, those that the checkpoint lacks get first values, and those that the plan lacks stay unread.

#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/checkpoint/stored_moments.h"
#include "runtime/data/safetensors.h"
#include "runtime/session.h"

#include "llvm/ADT/StringMap.h"

namespace plimsoll {

class CheckpointStates {
 public:
  // Compares the states that the session's plan keeps with those of the checkpoint. A weight of another shape is an
  // error: it is another model.
  static Result<CheckpointStates> open(const Checkpoint& checkpoint, const Session& session);

  // What a person should know, one line for each kind of difference, with names: "the checkpoint lacks ...".
  llvm::ArrayRef<std::string> differences() const { return differences_; }
  // Weights of the plan that the checkpoint lacks; they need a file of weights.
  llvm::ArrayRef<std::string> lacking_weights() const { return lacking_weights_; }
  // For Session::restore; it reads from this object.
  SavedStates saved() const;

 private:
  // Where a state's bytes are. Moments that are stored otherwise have no entry.
  struct Place {
    const SafetensorsFile* file = nullptr;
    const TensorEntry* entry = nullptr;
  };

  Status load(const WholeState& state, int64_t first, const TensorView& into) const;

  std::unique_ptr<SafetensorsFile> weights_, states_;
  std::unique_ptr<StoredMoments> moments_;  // reads states_
  llvm::StringMap<Place> places_;           // by the state's name in the plan
  std::vector<std::string> differences_, lacking_weights_;
  int64_t step_ = 0;
};

// "a, b, c and 4 more".
std::string list_some(llvm::ArrayRef<std::string> names);
// Of the weights' names and types: alike for all plans of one model.
uint64_t hash_of_weights(const Session& session);

}  // namespace plimsoll
