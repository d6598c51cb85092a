#pragma once

// Trains small graphs on random values in a poisoned arena.

#include "ir/device.h"
#include "runtime/session.h"
#include "tests/support/random_values.h"

#include "doctest/doctest.h"

namespace plimsoll::testing {

inline DeviceDescription cpu_device() {
  Result<DeviceCatalog> catalog = DeviceCatalog::builtin();
  REQUIRE(bool(catalog));
  Result<DeviceDescription> device = catalog->find("cpu");
  REQUIRE(bool(device));
  return *device;
}

// One batch from a map of tensors.
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
  int64_t items_per_batch() const override { return 1; }
  llvm::StringRef item_name() const override { return "samples"; }

 private:
  const RandomValues& values_;
  std::vector<InputSpec> specs_;
};

inline std::unique_ptr<Session> started(Plan plan, const RandomValues& values) {
  ExecutorOptions options;
  options.poison = true;
  Result<std::unique_ptr<Session>> session = Session::create(std::move(plan), options);
  REQUIRE_MESSAGE(bool(session), llvm::toString(session.takeError()));
  Status s = (*session)->initialise(
      [&](llvm::StringRef name, const TensorView& into) {
        const Tensor& tensor = values.tensors.at(name.str());
        for (int64_t i = 0; i < into.elements(); ++i) into.set(i, tensor.get(i));
        return Status::success();
      },
      1);
  REQUIRE_FALSE(bool(s));
  return std::move(*session);
}

}  // namespace plimsoll::testing
