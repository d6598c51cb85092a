#include "runtime/data/batch_order.h"

#include <algorithm>

namespace plimsoll {
namespace {

// Seeds of the orders of an epoch's batches, and of the samples of each length.
constexpr uint64_t seed_of_batches = 0x9e3779b97f4a7c15;

uint64_t seed_of_group(uint64_t seed, size_t group) { return seed + seed_of_batches * group; }

}  // namespace

BatchOrder::BatchOrder(const Dataset& data, const SamplePart& part, int64_t rows, const DataOptions& options)
    : part_(part),
      rows_(rows),
      seed_(options.seed),
      shuffle_(options.shuffle && part.samples() != rows),
      groups_(options.shorter.size() + 1) {
  if (options.shorter.empty())
    groups_.front().own_samples = part.samples();
  else
    divide(data, options.shorter);
  int64_t left = 0;
  for (Group& group : groups_) {
    group.samples = group.own_samples + left;
    group.first_batch = batches_;
    batches_ += group.samples / rows_;
    left = group.samples % rows_;
  }
  has_part_batch_ = left > 0 && options.last_batch != LastBatch::Drop;
  batches_ += has_part_batch_;
}

void BatchOrder::divide(const Dataset& data, llvm::ArrayRef<ShorterInputs> shorter) {
  for (int64_t i = 0; i < part_.samples(); ++i) {
    const std::optional<int64_t> least = data.least_length(part_.at(i));
    size_t group = 0;
    while (group < shorter.size() && !(least && *least <= shorter[group].length)) ++group;
    groups_[group].own.push_back(part_.at(i));
  }
  for (Group& group : groups_) group.own_samples = static_cast<int64_t>(group.own.size());
}

// Full batches are in an order of their own in each epoch; one that is not full comes last.
BatchOrder::Place BatchOrder::place_of(int64_t batch) const {
  int64_t at = batch % batches_;
  const int64_t full = batches_ - has_part_batch_;
  if (groups_.size() > 1 && shuffle_ && at < full)
    at = SampleOrder(full, seed_ + seed_of_batches, batch / batches_).at(at);
  size_t group = groups_.size() - 1;
  while (group > 0 && groups_[group].first_batch > at) --group;
  // Groups without a batch begin where the next one does.
  return {group, (at - groups_[group].first_batch) * rows_};
}

int64_t BatchOrder::samples_in(int64_t batch) const {
  const bool is_part = has_part_batch_ && batch % batches_ == batches_ - 1;
  return is_part ? groups_.back().samples % rows_ : rows_;
}

int64_t BatchOrder::sample(int64_t batch, int64_t row) const {
  const Place place = place_of(batch);
  return sample_of(place.length, (place.first + row) % groups_[place.length].samples, batch / batches_);
}

int64_t BatchOrder::sample_of(size_t group, int64_t index, int64_t epoch) const {
  const Group& from = groups_[group];
  if (index >= from.own_samples) {
    const int64_t batched = groups_[group - 1].samples / rows_ * rows_;
    return sample_of(group - 1, batched + index - from.own_samples, epoch);
  }
  const int64_t at = shuffle_ ? SampleOrder(from.own_samples, seed_of_group(seed_, group), epoch).at(index) : index;
  return from.own.empty() ? part_.at(at) : from.own[static_cast<size_t>(at)];
}

}  // namespace plimsoll
