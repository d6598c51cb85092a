#include "runtime/checkpoint/snapshot.h"

#include "ir/plan/snapshot_bytes.h"
#include "ir/support/align.h"
#include "ir/support/units.h"

#include "llvm/ADT/STLExtras.h"

#include <cstring>

namespace plimsoll {
namespace {

std::vector<const WholeState*> kept_states(llvm::ArrayRef<WholeState> states, bool weights) {
  std::vector<const WholeState*> kept;
  for (const WholeState& state : states)
    if (is_kept(state) && is_weight(state) == weights) kept.push_back(&state);
  llvm::sort(kept, [](const WholeState* a, const WholeState* b) { return name_in_file(*a) < name_in_file(*b); });
  return kept;
}

std::vector<TensorEntry> entries_of(llvm::ArrayRef<const WholeState*> states) {
  std::vector<TensorEntry> entries;
  for (const WholeState* state : states) entries.push_back({name_in_file(*state), state->type});
  return entries;
}

}  // namespace

SafetensorsImage::~SafetensorsImage() {
  if (pins_) pins_->unpin(bytes_.get());
}

Status SafetensorsImage::allocate(std::vector<TensorEntry> entries, Executor& executor) {
  const std::string header = safetensors_header(entries);
  size_ = static_cast<int64_t>(header.size());
  for (TensorEntry& entry : entries) {
    entry.offset = size_;
    size_ += entry.type.bytes();
  }
  constexpr int64_t page = 4096;  // whole pages are pinned, and no other memory with them
  bytes_.reset(static_cast<char*>(std::aligned_alloc(page, static_cast<size_t>(align_up(size_, page)))));
  if (!bytes_) return system_error("no host memory for " + format_bytes(size_));
  std::memset(bytes_.get(), 0, static_cast<size_t>(size_));  // the system gives pages when they are touched
  std::memcpy(bytes_.get(), header.data(), header.size());
  entries_ = std::move(entries);
  if (Status s = executor.pin(bytes_.get(), size_)) return s;
  pins_ = &executor;
  return Status::success();
}

bool is_kept(const WholeState& state) { return is_in_checkpoints(state.role, state.init, state.name); }

int64_t Snapshot::bytes_for(llvm::ArrayRef<WholeState> states) {
  int64_t bytes = 0;
  for (bool weights : {true, false}) {
    const std::vector<TensorEntry> entries = entries_of(kept_states(states, weights));
    bytes += static_cast<int64_t>(safetensors_header(entries).size());
    for (const TensorEntry& entry : entries) bytes += entry.type.bytes();
  }
  return bytes;
}

Status Snapshot::allocate(Session& session) {
  if (session.rank() != 0) return Status::success();
  kept_weights_ = kept_states(session.whole_states(), true);
  kept_states_ = kept_states(session.whole_states(), false);
  if (Status s = weights_.allocate(entries_of(kept_weights_), session.executor())) return s;
  return states_.allocate(entries_of(kept_states_), session.executor());
}

Status Snapshot::take(Session& session) {
  if (session.rank() != 0) return session.serve_pieces();
  Status copied = copy_all(session);
  return llvm::joinErrors(std::move(copied), session.end_serving());
}

Status Snapshot::copy_all(Session& session) {
  auto copy = [&](llvm::ArrayRef<const WholeState*> states, SafetensorsImage& image) -> Status {
    for (const auto& [state, entry] : llvm::zip(states, image.entries()))
      if (Status s = session.copy_whole_state(*state, {state->type, image.at(entry)})) return s;
    return Status::success();
  };
  if (Status s = copy(kept_weights_, weights_)) return s;
  return copy(kept_states_, states_);
}

}  // namespace plimsoll
