#pragma once

// Data of a training run in a test.

#include "runtime/session.h"
#include "tests/support/random_values.h"

namespace plimsoll::testing {

// Gives one batch from a map of tensors in every step.
class OneBatch : public BatchSource {
 public:
  OneBatch(const RandomValues& values, std::vector<InputSpec> inputs) : values_(values), specs_(std::move(inputs)) {}
  Status next(llvm::ArrayRef<TensorView> inputs) override {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Tensor& tensor = values_.tensors.at(specs_[i].name);
      for (int64_t k = 0; k < inputs[i].elements(); ++k)
        is_float(tensor.type().dtype) ? inputs[i].set(k, tensor.get(k)) : inputs[i].set_int(k, tensor.get_int(k));
    }
    return Status::success();
  }
  Status seek(int64_t) override { return Status::success(); }
  llvm::StringRef item_name() const override { return "samples"; }

 private:
  const RandomValues& values_;
  std::vector<InputSpec> specs_;
};

}  // namespace plimsoll::testing
