#pragma once

// Owners of what the driver hands out, and its errors as ours.

#include "ir/support/status.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

namespace plimsoll {

// Success, or a system error: "what: cudaErrorSomething, its text".
Status cuda_status(cudaError_t code, const llvm::Twine& what);

// The error where the device has no room for so many bytes.
Status out_of_device_memory(int64_t bytes, const llvm::Twine& what, llvm::StringRef name);

// One allocation, on the device or in pinned host memory; empty when 0 bytes were asked for.
class CudaMemory {
 public:
  using Release = std::function<void(void* at)>;
  static Result<CudaMemory> on_device(int64_t bytes, llvm::StringRef what);
  static Result<CudaMemory> pinned(int64_t bytes, llvm::StringRef what);

  CudaMemory() = default;
  CudaMemory(void* at, int64_t bytes, Release release)
      : at_(static_cast<std::byte*>(at)), bytes_(bytes), release_(std::move(release)) {}
  CudaMemory(CudaMemory&& other) noexcept { swap(other); }
  CudaMemory& operator=(CudaMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~CudaMemory();

  std::byte* data() const { return at_; }
  int64_t bytes() const { return bytes_; }

 private:
  void swap(CudaMemory& other) {
    std::swap(at_, other.at_);
    std::swap(bytes_, other.bytes_);
    std::swap(release_, other.release_);
  }
  std::byte* at_ = nullptr;
  int64_t bytes_ = 0;
  Release release_;
};

class CudaStream {
 public:
  CudaStream() = default;
  CudaStream(const CudaStream&) = delete;
  ~CudaStream() {
    if (stream_) cudaStreamDestroy(stream_);
  }
  enum class Priority : uint8_t { Low, Usual, High };  // Low gives way to the step
  Status create(Priority priority = Priority::Usual) {
    int lowest = 0, highest = 0;  // the number of a higher priority is less
    cudaDeviceGetStreamPriorityRange(&lowest, &highest);
    const int usual = std::max(highest, lowest - 1);
    const int numbers[] = {lowest, usual, highest};
    return cuda_status(
        cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, numbers[static_cast<size_t>(priority)]),
        "stream");
  }
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class CudaEvent {
 public:
  CudaEvent() = default;
  CudaEvent(CudaEvent&& other) noexcept { std::swap(event_, other.event_); }
  ~CudaEvent() {
    if (event_) cudaEventDestroy(event_);
  }
  // Events that time are dearer; those that only order work say so.
  Status create(bool timed = false) {
    return cuda_status(cudaEventCreateWithFlags(&event_, timed ? cudaEventDefault : cudaEventDisableTiming), "event");
  }
  // Who waits for it sleeps.
  Status create_sleeping() {
    return cuda_status(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync), "event");
  }
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace plimsoll
