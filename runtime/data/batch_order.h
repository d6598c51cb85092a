#pragma once

// Which sample is in which row of which batch, as a function of the batch's number, the seed and the options.

#include "runtime/data/dataset.h"

namespace plimsoll {

// Batches of an epoch hold each sample once. Where samples have lengths of their own, a batch holds samples of one of
// the lengths that the plan has steps for; what does not fill a batch of one length goes to the next longer one.
class BatchOrder {
 public:
  // `rows` of all ranks that hold samples.
  BatchOrder(const Dataset& data, const SamplePart& part, int64_t rows, const DataOptions& options);

  int64_t batches_per_epoch() const { return batches_; }
  // All batches hold the same samples in the same order.
  bool has_one_batch() const { return batches_ == 1 && !shuffle_; }
  int64_t samples_in(int64_t batch) const;
  // The sample in the row. A row past the last sample repeats one from the start.
  int64_t sample(int64_t batch, int64_t row) const;
  // Index into DataOptions::shorter; their number for the longest.
  size_t length_of(int64_t batch) const { return place_of(batch).length; }

 private:
  // Samples of one length: their own, then those that were left over by the shorter ones.
  struct Group {
    std::vector<int64_t> own;  // empty where there is one group of all samples
    int64_t own_samples = 0, samples = 0;
    int64_t first_batch = 0;  // of an epoch that is not shuffled
  };
  struct Place {
    size_t length = 0;
    int64_t first = 0;  // the group's sample in the first row
  };

  void divide(const Dataset& data, llvm::ArrayRef<ShorterInputs> shorter);
  Place place_of(int64_t batch) const;
  int64_t sample_of(size_t group, int64_t index, int64_t epoch) const;

  SamplePart part_;
  int64_t rows_, batches_ = 0;
  uint64_t seed_;
  bool shuffle_, has_part_batch_ = false;
  std::vector<Group> groups_;  // by length
};

}  // namespace plimsoll
