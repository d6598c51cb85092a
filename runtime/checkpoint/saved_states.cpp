#include "runtime/checkpoint/saved_states.h"

#include "runtime/checkpoint/snapshot.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/xxhash.h"

#include <cstring>

namespace plimsoll {
namespace {

Result<std::unique_ptr<SafetensorsFile>> open_file(const Checkpoint& checkpoint, llvm::StringRef name) {
  Result<SafetensorsFile> file = SafetensorsFile::open(checkpoint.path + "/" + name.str());
  if (!file) return file.takeError();
  return std::make_unique<SafetensorsFile>(std::move(*file));
}

Status another_model(const Checkpoint& checkpoint, const WholeState& state, const TensorEntry& entry) {
  return model_error(checkpoint.path + ": weight '" + entry.name + "' is " + to_string(entry.type) +
                     ", the plan needs " + to_string(state.type) + "; the checkpoint is of another model");
}

// Every number of a state in the plan's dtype.
void convert(const TensorView& from, const TensorView& to) {
  for (int64_t i = 0; i < to.elements(); ++i)
    is_float(to.type.dtype) ? to.set(i, from.get(i)) : to.set_int(i, from.get_int(i));
}

}  // namespace

std::string list_some(llvm::ArrayRef<std::string> names) {
  constexpr size_t shown = 3;
  std::string text = llvm::join(names.take_front(shown), ", ");
  if (names.size() > shown) text += " and " + std::to_string(names.size() - shown) + " more";
  return text;
}

uint64_t hash_of_weights(const Session& session) {
  std::vector<std::string> lines;
  for (const WholeState& state : session.whole_states())
    if (is_weight(state)) lines.push_back(name_in_file(state) + " " + to_string(state.type) + "\n");
  llvm::sort(lines);
  return llvm::xxHash64(llvm::join(lines, ""));
}

Result<CheckpointStates> CheckpointStates::open(const Checkpoint& checkpoint, const Session& session) {
  CheckpointStates states;
  states.step_ = checkpoint.record.step;
  Result<std::unique_ptr<SafetensorsFile>> weights = open_file(checkpoint, checkpoint_weights_file);
  if (!weights) return weights.takeError();
  states.weights_ = std::move(*weights);
  Result<std::unique_ptr<SafetensorsFile>> others = open_file(checkpoint, checkpoint_states_file);
  if (!others) return others.takeError();
  states.states_ = std::move(*others);

  states.moments_ = std::make_unique<StoredMoments>(*states.states_);
  std::vector<std::string> lacking, converted, reshaped, unused;
  llvm::StringSet<> wanted_weights, wanted_states;
  for (const WholeState& state : session.whole_states()) {
    if (!is_kept(state)) continue;
    const std::string& name = name_in_file(state);
    (is_weight(state) ? wanted_weights : wanted_states).insert(name);
    const SafetensorsFile& file = is_weight(state) ? *states.weights_ : *states.states_;
    const TensorEntry* entry = file.find(name);
    if (const auto sources = states.moments_->sources_of(state)) {
      states.places_[state.name] = {};
      for (const std::string& source : *sources) wanted_states.insert(source);
      converted.push_back(name);
    } else if (!entry) {
      (is_weight(state) ? states.lacking_weights_ : lacking).push_back(name);
    } else if (entry->type.shape != state.type.shape || is_float(entry->type.dtype) != is_float(state.type.dtype)) {
      if (is_weight(state)) return another_model(checkpoint, state, *entry);
      reshaped.push_back(name);
    } else {
      states.places_[state.name] = {&file, entry};
      if (entry->type.dtype != state.type.dtype) converted.push_back(name);
    }
  }
  for (const auto& [file, wanted] :
       {std::pair(states.weights_.get(), &wanted_weights), std::pair(states.states_.get(), &wanted_states)})
    for (const TensorEntry& entry : file->entries())
      if (!wanted->contains(entry.name)) unused.push_back(entry.name);

  auto note = [&](llvm::ArrayRef<std::string> names, const llvm::Twine& what) {
    if (!names.empty()) states.differences_.push_back((what + ": " + list_some(names)).str());
  };
  note(states.lacking_weights_, "weights that the checkpoint lacks get their values from --weights");
  note(lacking, "states that the checkpoint lacks get first values");
  note(reshaped, "states of another shape in the checkpoint get first values");
  note(converted, "states of another dtype in the checkpoint are converted");
  note(unused, "states of the checkpoint that the plan does not have are not used");
  return states;
}

SavedStates CheckpointStates::saved() const {
  SavedStates saved;
  saved.has = [this](const WholeState& state) { return places_.count(state.name) > 0; };
  saved.load_range = [this](const WholeState& state, int64_t first, const TensorView& into) {
    return load(state, first, into);
  };
  saved.step = step_;
  return saved;
}

Status CheckpointStates::load(const WholeState& state, int64_t first, const TensorView& into) const {
  const Place& place = places_.find(state.name)->second;
  if (!place.entry) return moments_->load(state, first, into);
  if (place.entry->type.dtype == into.type.dtype)
    return place.file->read_range(*place.entry, first, into.elements(), into.data);
  Tensor stored(Type(place.entry->type.dtype, {into.elements()}));
  if (Status s = place.file->read_range(*place.entry, first, into.elements(), stored.data())) return s;
  convert(stored.view(), into);
  return Status::success();
}

}  // namespace plimsoll
