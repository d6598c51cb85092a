#pragma once

// Moments of a checkpoint for a plan that stores them otherwise: in 8 bits what the checkpoint has as floats, and the
// other way round.

#include "runtime/data/safetensors.h"
#include "runtime/session.h"

namespace plimsoll {

class StoredMoments {
 public:
  explicit StoredMoments(const SafetensorsFile& file) : file_(file) {}

  // Can the state be made of other tensors of the file? Names those that it is made of.
  std::optional<std::vector<std::string>> sources_of(const WholeState& state) const;
  // Elements of such a state from `first` on.
  Status load(const WholeState& state, int64_t first, const TensorView& into) const;

 private:
  // One of a parameter's moments as the file has it.
  struct Stored {
    const TensorEntry* entry = nullptr;   // null: the file lacks it
    const TensorEntry* scales = nullptr;  // of 8-bit codes
    bool is_signed = true;
  };
  Stored find(llvm::StringRef parameter, bool is_signed) const;
  Result<std::vector<float>> read(const Stored& moment, int64_t first, int64_t count) const;
  Status load_some(const WholeState& state, int64_t first, const TensorView& into) const;

  const SafetensorsFile& file_;
};

}  // namespace plimsoll
