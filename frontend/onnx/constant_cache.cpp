#include "frontend/onnx/constant_cache.h"

namespace plimsoll {
namespace {

constexpr int64_t max_key_bytes = 4096;

class KeyWriter {
 public:
  void bytes(const void* data, size_t size) { key_.append(static_cast<const char*>(data), size); }
  template <typename T>
  void number(T value) {
    bytes(&value, sizeof value);
  }
  void text(llvm::StringRef value) {
    number(value.size());
    bytes(value.data(), value.size());
  }
  template <typename List>
  void list(const List& values) {
    number(values.size());
    for (auto value : values) number(value);
  }

  void operator()(int64_t value) { number(value); }
  void operator()(double value) { number(value); }
  void operator()(const std::string& value) { text(value); }
  void operator()(const Ints& value) { list(value); }
  void operator()(const Floats& value) { list(value); }
  void operator()(DType value) { number(value); }
  void operator()(const TensorRef& value) {
    number(value->type().dtype);
    list(value->type().shape);
    too_large_ |= value->type().bytes() > max_key_bytes;
    if (!too_large_) bytes(value->data(), static_cast<size_t>(value->type().bytes()));
  }

  std::optional<std::string> take() {
    if (too_large_) return std::nullopt;
    return std::move(key_);
  }

 private:
  std::string key_;
  bool too_large_ = false;
};

}  // namespace

std::optional<std::string> constant_key(llvm::StringRef op, llvm::ArrayRef<ValueId> operands, const Attrs& attrs) {
  KeyWriter key;
  key.text(op);
  key.list(operands);
  for (const Attrs::Entry& entry : attrs.entries()) {
    key.text(entry.first);
    key.number(entry.second.index());
    std::visit(key, entry.second);
  }
  return key.take();
}

}  // namespace plimsoll
