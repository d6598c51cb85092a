#include "ir/adapter_names.h"
#include "ir/kept_copies.h"
#include "ir/support/philox.h"
#include "ir/support/strings.h"
#include "runtime/cpu/transpose.h"
#include "runtime/first_magnitudes.h"
#include "runtime/packed_weights.h"
#include "runtime/session.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/xxhash.h"

#include <cstring>
#include <map>

// The states of a session: their first values, drawn, loaded or restored, and what they are afterwards, whole whichever
// ranks have which pieces.

namespace plimsoll {
namespace {

constexpr int64_t worth_threads = 1 << 16;

// First values of large models are tens of GiB.
template <typename Body>
void for_each_element(int64_t count, Body body) {
#pragma omp parallel for if (count >= worth_threads)
  for (int64_t i = 0; i < count; ++i) body(i);
}

// Of a weight's numbers those from `first` on.
void fill_normal(const TensorView& into, int64_t first, const RandomStream& stream, double deviation) {
  const int64_t end = first + into.elements(), first_block = first / 4;
  for_each_element((end + 3) / 4 - first_block, [&](int64_t i) {
    const int64_t block = first_block + i;
    const std::array<double, 4> numbers = stream.normals(block);
    for (int64_t at = std::max(first, 4 * block); at < std::min(end, 4 * block + 4); ++at)
      into.set(at - first, deviation * numbers[static_cast<size_t>(at % 4)]);
  });
}

void fill_first(const TensorView& into, const Shape& whole, int64_t first, const FirstValue& value,
                const RandomStream& stream) {
  const int64_t width = whole.empty() ? 1 : std::max<int64_t>(whole.back(), 1);
  switch (value.kind) {
    case FirstValue::Kind::Normal: return fill_normal(into, first, stream, value.scale);
    case FirstValue::Kind::Uniform:
      return for_each_element(into.elements(),
                              [&](int64_t i) { into.set(i, value.scale * (2 * stream.uniform(first + i) - 1)); });
    case FirstValue::Kind::Index:
      return for_each_element(into.elements(),
                              [&](int64_t i) { into.set(i, static_cast<double>((first + i) % width)); });
    default: return for_each_element(into.elements(), [&](int64_t i) { into.set(i, value.scale); });
  }
}

// A piece may be many ranges of one weight, which is made once.
class LastWeight {
 public:
  Status cut(const WeightLoader& make, llvm::StringRef name, const Type& type, int64_t first, const TensorView& into) {
    if (name_ != name || !whole_ || !(whole_->type() == type)) {
      name_ = name.str();
      whole_.emplace(type);
      if (Status s = make(name, whole_->view())) return s;
    }
    std::memcpy(into.data, static_cast<const char*>(whole_->data()) + first * dtype_bytes(type.dtype),
                static_cast<size_t>(into.type.bytes()));
    return Status::success();
  }

 private:
  std::string name_;
  std::optional<Tensor> whole_;
};

// What its layer draws, or no layer is known for, is normal where it has dimensions enough to be a matrix. Constants of
// layers stay: a norm's scale may have four dimensions, and a signal that shrinks at each norm trains nothing.
FirstValue as_normal(llvm::StringRef name, const Type& type, double deviation, const FirstValue& by_layer) {
  const bool is_drawn = by_layer.kind == FirstValue::Kind::Uniform || by_layer.kind == FirstValue::Kind::Normal;
  if (!is_drawn && by_layer.kind != FirstValue::Kind::Unknown) return by_layer;
  if (type.rank() > 1) return {FirstValue::Kind::Normal, deviation, ""};
  const bool is_scale = ends_with(name, "weight") || ends_with(name, "scale") || ends_with(name, "running_var");
  return {FirstValue::Kind::Constant, is_scale ? 1.0 : 0.0, ""};
}

// Puts the parts of a quantised weight one after the other, so that it is loaded and packed once.
void parts_together(std::vector<const PlanState*>& states, const WeightPacker& packer) {
  std::map<size_t, size_t> first;  // by weight: the place of its first part
  std::vector<std::pair<size_t, const PlanState*>> placed;
  for (const PlanState* state : states) {
    size_t place = placed.size();
    if (state->init.kind == StateInit::Kind::Weights && packer.makes(state->init.source))
      place = first.try_emplace(packer.weight_of(state->init.source), place).first->second;
    placed.emplace_back(place, state);
  }
  llvm::stable_sort(placed, [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < placed.size(); ++i) states[i] = placed[i].second;
}

}  // namespace

WholeState whole_state_of(const Plan& stage, const PlanState& state) {
  const Slot& slot = stage.slots[static_cast<size_t>(state.slot)];
  const Type type(slot.type.dtype, whole_shape(state.divisions, stage.model_type(state).shape));
  return {slot.name, state.init, type, stage.stage, state.role, state.trained};
}

const PlanState* Session::find_state(llvm::StringRef name) const {
  for (const PlanState& state : plan_.states)
    if (plan_.slots[static_cast<size_t>(state.slot)].name == name) return &state;
  return nullptr;
}

Status Session::read_state(llvm::StringRef name, Executor::Visit use) {
  const PlanState* found = find_state(name);
  if (!found) return model_error("the plan has no state '" + name + "'");
  return executor_->read(found->slot, [&](const TensorView& view) {
    return found->channels_last ? use(copy_as_model(*found, view).view()) : use(view);
  });
}

Tensor Session::copy_as_model(const PlanState& state, const TensorView& stored) const {
  if (!state.channels_last) return Tensor(stored.type, stored.data);
  Tensor copy(Type(stored.type.dtype, plan_.model_type(state).shape));
  put_channels_second(copy.view(), stored);
  return copy;
}

Result<Tensor> Session::copy_of(const PlanState& state) {
  Tensor copy;
  if (Status s = executor_->read(state.slot, [&](const TensorView& view) {
        copy = copy_as_model(state, view);
        return Status::success();
      }))
    return s;
  return copy;
}

Status Session::write_state(const PlanState& state, Executor::Visit fill) {
  if (!state.channels_last) return executor_->write(state.slot, fill);
  Tensor given(plan_.model_type(state));
  if (Status s = fill(given.view())) return s;
  return executor_->write(state.slot, [&](const TensorView& view) {
    put_channels_last(view, given.view());
    return Status::success();
  });
}

// The last division is undone first.
Result<Tensor> Session::gather_pieces_of(const PlanState& state) {
  Result<Tensor> own = copy_of(state);
  if (!own) return own;
  for (const Division& division : llvm::reverse(state.divisions)) {
    const Type piece = own->type();
    Shape together{plan_.mesh[division.axis]};
    together.append(piece.shape);
    Tensor all(Type(piece.dtype, together)), whole(Type(piece.dtype, division.whole));
    if (Status s = collectives_->along(division.axis)->gather_pieces(all.view(), own->view())) return s;
    for (int64_t i = 0; i < together[0]; ++i)
      copy_from_piece(whole.view(), {piece, all.view().as<char>() + i * piece.bytes()}, division.cut, i);
    own = std::move(whole);
  }
  return own;
}

// The stage that has it gathers its pieces, and hands it to the first stage.
Result<Tensor> Session::whole_of(const WholeState& state) {
  const bool is_here = plan_.mesh.coordinate(rank_, MeshAxis::Stage) == state.stage;
  Tensor whole;
  if (is_here) {
    const PlanState& own = *find_state(state.name);
    Result<Tensor> read = gather_pieces_of(own);
    if (!read) return read;
    whole = std::move(*read);
  }
  if (state.stage == 0) return whole;
  const int64_t sender = plan_.mesh.group_of(0, MeshAxis::Stage)[static_cast<size_t>(state.stage)];
  if (rank_ == 0) whole = Tensor(state.type);
  Status moved = Status::success();
  if (rank_ == sender) moved = ranks_->transfer({0, whole.data(), state.type.bytes()}, {});
  if (rank_ == 0) moved = ranks_->transfer({}, {sender, whole.data(), state.type.bytes()});
  if (moved) return moved;
  return whole;
}

Status Session::read_whole_state(const WholeState& state, Executor::Visit use) {
  if (!ranks_ || ranks_->ranks() == 1) return read_state(state.name, use);
  Result<int64_t> announced = number_of_first_rank(&state - whole_states_.data());
  if (!announced) return announced.takeError();
  Result<Tensor> whole = whole_of(state);
  return whole ? use(whole->view()) : whole.takeError();
}

Status Session::copy_whole_state(const WholeState& state, const TensorView& to) {
  const bool is_alone = !ranks_ || ranks_->ranks() == 1;
  if (const PlanState* own = is_alone ? find_state(state.name) : nullptr; own && !own->channels_last)
    return executor_->read_into(own->slot, to);
  return read_whole_state(state, [&](const TensorView& bytes) {
    std::memcpy(to.data, bytes.data, static_cast<size_t>(to.type.bytes()));
    return Status::success();
  });
}

Status Session::serve_pieces() {
  for (;;) {
    Result<int64_t> wanted = number_of_first_rank(-1);
    if (!wanted || *wanted < 0) return wanted.takeError();
    Result<Tensor> whole = whole_of(whole_states_[static_cast<size_t>(*wanted)]);
    if (!whole) return whole.takeError();
  }
}

// No state has the number -1.
Status Session::end_serving() { return number_of_first_rank(-1).takeError(); }

Status Session::fill_state(const PlanState& state, const WeightLoader& load, const WeightRangeLoader& load_range) {
  if (state.init.is_derived()) return Status::success();
  if (state.init.kind == StateInit::Kind::Fill && state.init.fill == 0) return executor_->clear(state.slot);
  if (state.init.kind == StateInit::Kind::Weights && !state.divisions.empty())
    return load_state(state, [&](int64_t first, const TensorView& into) {
      return load_range(state.init.source, whole_state_of(plan_, state).type, first, into);
    });
  return write_state(state, [&](const TensorView& view) -> Status {
    if (state.init.kind == StateInit::Kind::Weights) return load(state.init.source, view);
    for_each_element(view.elements(), [&](int64_t i) { view.set(i, state.init.fill); });
    return Status::success();
  });
}

Status Session::load_state(const PlanState& state, RangeLoader load_range) {
  return write_state(state, [&](const TensorView& view) {
    return state.divisions.empty() ? load_range(0, view) : load_piece(state, load_range, view);
  });
}

Status Session::load_piece(const PlanState& state, RangeLoader load_range, const TensorView& piece) const {
  const Division& first = state.divisions.front();
  const bool further = state.divisions.size() > 1;
  const Type whole(piece.type.dtype, first.whole),
      part(whole.dtype, further ? state.divisions[1].whole : piece.type.shape);
  Tensor own(further ? part : Type(whole.dtype, {0}));
  char* bytes = further ? static_cast<char*>(own.data()) : piece.as<char>();
  std::memset(bytes, 0, static_cast<size_t>(part.bytes()));
  Status status = Status::success();
  for_each_run(whole, part, first.cut, plan_.mesh.coordinate(rank_, first.axis), [&](const PieceRun& run) {
    if (status || run.count == 0) return;
    const TensorView into{Type(whole.dtype, {run.count}), bytes + run.piece_at * dtype_bytes(whole.dtype)};
    status = load_range(run.whole_at, into);
  });
  if (status || !further) return status;
  const llvm::ArrayRef<Division> others = llvm::ArrayRef<Division>(state.divisions).drop_front();
  own = piece_of(std::move(own), others, plan_.mesh, rank_, piece.type.shape);
  std::memcpy(piece.data, own.data(), static_cast<size_t>(piece.type.bytes()));
  return Status::success();
}

Status Session::copy_derived_state(const PlanState& state) {
  if (state.init.kind == StateInit::Kind::TransposeOf)
    return read_state(state.init.source, [&](const TensorView& from) {
      return executor_->write(state.slot, [&](const TensorView& to) {
        transpose(to, from);
        return Status::success();
      });
    });
  Tensor source;
  if (Status s = read_state(state.init.source, [&](const TensorView& view) {
        source = Tensor(view.type, view.data);
        return Status::success();
      }))
    return s;
  // Both are divided alike, and the copy perhaps further.
  const PlanState& original = *find_state(state.init.source);
  const llvm::ArrayRef<Division> divisions = state.divisions;
  source = piece_of(std::move(source), divisions.drop_front(original.divisions.size()), plan_.mesh, rank_,
                    plan_.slots[static_cast<size_t>(state.slot)].type.shape);
  return write_state(state, [&](const TensorView& view) {
    for_each_element(view.elements(), [&](int64_t i) { view.set(i, source.get(i)); });
    return Status::success();
  });
}

Status Session::seed_random_counter(const PlanState& rng, uint64_t seed) {
  return executor_->write(rng.slot, [&](const TensorView& view) {
    view.set_int(0, static_cast<int64_t>(seed));
    view.set_int(1, 0);
    return Status::success();
  });
}

Status Session::set_states(const SavedStates* saved, const WeightLoader& load_weight, uint64_t seed,
                           const WeightRangeLoader& load_weight_range, const WeightTypes& types) {
  WeightPacker packer(plan_, load_weight, load_weight_range, types);
  // Adapters that the file has not are drawn.
  const auto is_drawn = [&](llvm::StringRef name) {
    return parse_adapter_weight(name) && !(types && types(name).has_value());
  };
  const WeightLoader load_stored = [&](llvm::StringRef name, const TensorView& into) {
    if (packer.makes(name)) return packer.load(name, into);
    return is_drawn(name) ? draw_weight(name, into.type, 0, into, seed, 0) : load_weight(name, into);
  };
  const WeightLoader load = [&](llvm::StringRef name, const TensorView& into) {
    const auto adapter = parse_adapter_weight(name);
    const bool is_magnitude = adapter && adapter->matrix == AdapterMatrix::Magnitude;
    return is_magnitude && is_drawn(name) ? fill_first_magnitude(plan_, name, load_stored, into)
                                          : load_stored(name, into);
  };
  LastWeight last;
  const WeightRangeLoader load_range = [&](llvm::StringRef name, const Type& whole_type, int64_t first,
                                           const TensorView& into) {
    return load_weight_range && !is_drawn(name) && !packer.makes(name)
               ? load_weight_range(name, whole_type, first, into)
               : last.cut(load, name, whole_type, first, into);
  };
  std::vector<const PlanState*> fresh;
  for (const PlanState& state : plan_.states) {
    const WholeState named = whole_state_of(plan_, state);
    if (!saved || !saved->has(named)) {
      fresh.push_back(&state);
    } else if (Status s = load_state(state, [&](int64_t first, const TensorView& into) {
                 return saved->load_range(named, first, into);
               })) {
      return s;
    }
  }
  parts_together(fresh, packer);
  for (const PlanState* state : fresh)
    if (Status s = fill_state(*state, load, load_range)) return s;
  for (const PlanState* state : fresh)
    if (state->init.is_derived())
      if (Status s = copy_derived_state(*state)) return s;
  if (const PlanState* rng = find_state("rng"); rng && llvm::is_contained(fresh, rng))
    if (Status s = seed_random_counter(*rng, seed)) return s;
  steps_started_ = steps_done_ = saved ? saved->step : 0;
  if (const PlanState* rate = find_state("learning_rate")) learning_rate_ = rate->init.fill;
  return Status::success();
}

Status Session::initialise(const WeightLoader& load, uint64_t seed, const WeightRangeLoader& load_range) {
  return initialise(load, seed, load_range, nullptr);
}

Status Session::initialise(const WeightLoader& load, uint64_t seed, const WeightRangeLoader& load_range,
                           const WeightTypes& types) {
  return set_states(nullptr, load, seed, load_range, types);
}

Status Session::restore(const SavedStates& saved, const WeightLoader& load, uint64_t seed,
                        const WeightRangeLoader& load_range) {
  return set_states(&saved, load, seed, load_range, nullptr);
}

Status Session::overwrite(const SavedStates& saved) {
  llvm::StringSet<> changed;
  for (const PlanState& state : plan_.states) {
    const WholeState named = whole_state_of(plan_, state);
    if (!saved.has(named)) continue;
    changed.insert(named.name);
    if (Status s = load_state(
            state, [&](int64_t first, const TensorView& into) { return saved.load_range(named, first, into); }))
      return s;
  }
  for (const PlanState& state : plan_.states)
    if (state.init.is_derived() && changed.contains(state.init.source))
      if (Status s = copy_derived_state(state)) return s;
  return Status::success();
}

// By its name each weight gets the same numbers whatever the mesh. With a deviation, constants alone depend on its
// layer.
Status Session::draw_weight(llvm::StringRef name, const Type& whole, int64_t first, const TensorView& into,
                            uint64_t seed, double deviation) const {
  const RandomStream stream{static_cast<int64_t>(seed), 0, static_cast<int64_t>(llvm::xxHash64(name))};
  const FirstValue by_layer = first_values_.lookup(name);
  const FirstValue value = deviation == 0 ? by_layer : as_normal(name, whole, deviation, by_layer);
  fill_first(into, whole.shape, first, value, stream);
  return Status::success();
}

Status Session::check_first_values() const {
  std::string list;
  int64_t unknown = 0;
  for (const WholeState& state : whole_states_) {
    if (state.init.kind != StateInit::Kind::Weights) continue;
    const FirstValue value = first_values_.lookup(state.init.source);
    if (value.kind != FirstValue::Kind::Unknown || ++unknown > 3) continue;
    list += (list.empty() ? "" : ", ") + state.name + " " + to_string(state.type) + " (read by " + value.reader + ")";
  }
  if (unknown == 0) return Status::success();
  return model_error(llvm::Twine(unknown) + (unknown == 1 ? " weight is" : " weights are") +
                     " read by no layer whose first values are known: " + list + (unknown > 3 ? ", ..." : "") +
                     "; load them (--weights), or draw all matrices with one deviation (--init-std 0.02)");
}

Status Session::initialise_randomly(uint64_t seed, double deviation) {
  if (deviation == 0)
    if (Status s = check_first_values()) return s;
  const WeightLoader draw = [&](llvm::StringRef name, const TensorView& into) {
    return draw_weight(name, into.type, 0, into, seed, deviation);
  };
  // Threads share long ranges, and short ones are cut out of a weight that threads share.
  LastWeight last;
  return initialise(draw, seed, [&](llvm::StringRef name, const Type& whole, int64_t first, const TensorView& into) {
    return into.elements() >= worth_threads ? draw_weight(name, whole, first, into, seed, deviation)
                                            : last.cut(draw, name, whole, first, into);
  });
}

}  // namespace plimsoll
