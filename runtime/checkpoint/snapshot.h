#pragma once

// A copy of all states in host memory, in the very bytes of a checkpoint's files, so that a thread can write them while
// training goes on. The memory is taken once, before the first step.

#include "runtime/data/safetensors.h"
#include "runtime/session.h"

#include <cstdlib>
#include <memory>

namespace plimsoll {

// A safetensors file in memory.
class SafetensorsImage {
 public:
  SafetensorsImage() = default;
  ~SafetensorsImage();
  SafetensorsImage(const SafetensorsImage&) = delete;

  // Takes the memory, which the executor may pin, and writes the header. An error where the machine lacks it. The
  // executor must outlive the image.
  Status allocate(std::vector<TensorEntry> entries, Executor& executor);
  llvm::ArrayRef<TensorEntry> entries() const { return entries_; }  // offsets are those in the file
  char* at(const TensorEntry& entry) { return bytes_.get() + entry.offset; }
  llvm::StringRef bytes() const { return {bytes_.get(), static_cast<size_t>(size_)}; }

 private:
  std::vector<TensorEntry> entries_;
  std::unique_ptr<char, decltype(&std::free)> bytes_{nullptr, &std::free};
  int64_t size_ = 0;
  Executor* pins_ = nullptr;  // null: the bytes are not pinned
};

// Whether a checkpoint holds the state.
bool is_kept(const WholeState& state);
// Whether the state is one of the model's weights, which have a file of their own.
inline bool is_weight(const WholeState& state) { return state.init.kind == StateInit::Kind::Weights; }
// Its name in its file: that of the model for weights.
inline const std::string& name_in_file(const WholeState& state) {
  return is_weight(state) ? state.init.source : state.name;
}

class Snapshot {
 public:
  // The bytes that the first rank's snapshot takes.
  static int64_t bytes_for(llvm::ArrayRef<WholeState> states);
  // Takes the memory, on the first rank; the others need none.
  Status allocate(Session& session);
  // Copies the states as they are after the steps that were started. Every rank calls it.
  Status take(Session& session);

  const SafetensorsImage& weights() const { return weights_; }
  const SafetensorsImage& states() const { return states_; }

 private:
  Status copy_all(Session& session);

  std::vector<const WholeState*> kept_weights_, kept_states_;  // in the order of the images' entries
  SafetensorsImage weights_, states_;
};

}  // namespace plimsoll
