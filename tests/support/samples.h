#pragma once

// Data with an end for tests of evaluation.

#include "runtime/session.h"
#include "tests/support/random_values.h"

namespace plimsoll::testing {

// Rows of tensors by name, in order, with as many samples as the tensors' first dimension says. Rows beyond the end
// hold bytes that no model can use.
class Samples : public BatchSource {
 public:
  // Of several ranks each has its rows of every batch.
  Samples(const RandomValues& values, std::vector<InputSpec> inputs, int64_t samples, int64_t rank = 0,
          int64_t ranks = 1)
      : values_(values),
        specs_(std::move(inputs)),
        samples_(samples),
        rows_(specs_.front().type.shape[0]),
        rank_(rank),
        ranks_(ranks) {}

  Status next(llvm::ArrayRef<TensorView> inputs) override {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Tensor& all = values_.tensors.at(specs_[i].name);
      const int64_t row_bytes = inputs[i].type.bytes() / rows_;
      std::memset(inputs[i].data, 0xff, static_cast<size_t>(inputs[i].type.bytes()));
      const int64_t first = std::min(samples_, (batch_ * ranks_ + rank_) * rows_),
                    end = std::min(samples_, first + rows_);
      std::memcpy(inputs[i].data, static_cast<const char*>(all.data()) + first * row_bytes,
                  static_cast<size_t>((end - first) * row_bytes));
    }
    ++batch_;
    return Status::success();
  }
  Status seek(int64_t batch) override {
    batch_ = batch;
    return Status::success();
  }
  int64_t batches_per_epoch() const override { return (samples_ + samples_per_batch() - 1) / samples_per_batch(); }
  int64_t samples_in(int64_t batch) const override {
    return std::min(samples_per_batch(), samples_ - batch * samples_per_batch());
  }
  int64_t samples_per_batch() const override { return rows_ * ranks_; }
  llvm::StringRef item_name() const override { return "samples"; }

 private:
  const RandomValues& values_;
  std::vector<InputSpec> specs_;
  int64_t samples_, rows_, rank_, ranks_, batch_ = 0;
};

}  // namespace plimsoll::testing
