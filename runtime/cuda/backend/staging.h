#pragma once

// How numbers get in and out without stalling the device: inputs through two pinned buffers and a copy stream, the
// outputs of each run and single numbers such as a learning rate through rings of pinned rows.

#include "ir/plan/plan.h"
#include "runtime/cuda/backend/device_memory.h"

namespace plimsoll {

class InputStaging {
 public:
  // `at` gives a slot's device address.
  Status create(const Plan& plan, size_t function, llvm::function_ref<void*(SlotId)> at);

  // The buffer the next batch goes to, once its last copy is through.
  Status next(llvm::ArrayRef<TensorView>& views);
  // Sends the buffer last handed out, at times once more: to the staging slots beside what runs, and from there to the
  // inputs' own slots on `compute`; inputs without a staging slot go to their own at once, on `compute`.
  Status send(cudaStream_t compute);
  // Copies the inputs that were last sent to their own slots once more.
  Status repeat(cudaStream_t compute);

 private:
  struct Input {
    size_t bytes;
    void *staging, *slot;  // device; without a staging slot null
  };
  struct Buffer {
    CudaMemory memory;
    std::vector<TensorView> views;
    CudaEvent sent;
  };

  Status copy_from_host(const Input& input, const TensorView& from, void* to, cudaStream_t stream) const;

  std::vector<Input> inputs_;
  Buffer buffers_[2];
  size_t current_ = 1;
  CudaStream copies_;
  CudaEvent staging_free_;
};

class ScalarStaging {
 public:
  Status create();
  // Writes the only element of `to` in the order of `compute`.
  Status send(const TensorView& to, double value, cudaStream_t compute);

 private:
  static constexpr size_t rows = 16;  // more than the steps in flight, so that no row is waited for
  static constexpr size_t element_bytes = 8;
  CudaMemory memory_;
  CudaEvent sent_[rows];
  size_t next_ = 0;
};

class OutputRing {
 public:
  Status create(const Plan& plan, size_t function, llvm::function_ref<void*(SlotId)> at);
  // After the function's last instruction.
  Status record(int64_t run, cudaStream_t compute);
  Status wait(int64_t run, llvm::ArrayRef<double>& values);

 private:
  static constexpr int64_t element_bytes = 8;
  struct Output {
    Type type;
    const void* from;
  };
  std::vector<Output> outputs_;
  CudaMemory rows_;
  std::vector<CudaEvent> done_;
  std::vector<double> values_;
};

}  // namespace plimsoll
