#pragma once

// All prepared oneDNN primitives of one executor share the engine and one scratchpad, as large as the largest of them
// wants. Primitives of one Library must not run at the same time.

#include <oneapi/dnnl/dnnl.hpp>

#include <cstdint>
#include <memory>
#include <new>

namespace plimsoll::cpu {

class Library {
 public:
  Library() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  const dnnl::engine& engine() const { return engine_; }
  const dnnl::stream& stream() const { return stream_; }

  // Only while preparing: it may move the scratchpad.
  void reserve_scratch(int64_t bytes) {
    if (bytes <= scratch_bytes_) return;
    scratch_bytes_ = bytes;
    scratch_.reset(::operator new(static_cast<size_t>(scratch_bytes_), alignment));
  }
  void* scratch() const { return scratch_.get(); }
  int64_t scratch_bytes() const { return scratch_bytes_; }

 private:
  static constexpr std::align_val_t alignment{64};
  struct Free {
    void operator()(void* p) const { ::operator delete(p, alignment); }
  };
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::unique_ptr<void, Free> scratch_;
  int64_t scratch_bytes_ = 0;
};

}  // namespace plimsoll::cpu
