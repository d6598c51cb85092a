#include "ir/attrs.h"

#include <algorithm>
#include <cassert>

namespace plimsoll {
namespace {

bool same(const Attr& a, const Attr& b) {
  if (a.index() != b.index()) return false;
  if (const auto* left = std::get_if<TensorRef>(&a)) {
    const TensorRef& right = std::get<TensorRef>(b);
    return *left == right || (*left && right && **left == *right);
  }
  return a == b;
}

template <typename T>
const T* find_as(const Attrs& attrs, llvm::StringRef name) {
  const Attr* attr = attrs.find(name);
  if (!attr) return nullptr;
  const T* value = std::get_if<T>(attr);
  assert(value && "attribute has another kind");
  return value;
}

}  // namespace

void Attrs::set(llvm::StringRef name, Attr value) {
  auto at = std::lower_bound(entries_.begin(), entries_.end(), name,
                             [](const Entry& e, llvm::StringRef n) { return e.first < n; });
  if (at != entries_.end() && at->first == name)
    at->second = std::move(value);
  else
    entries_.insert(at, Entry(name.str(), std::move(value)));
}

void Attrs::erase(llvm::StringRef name) {
  llvm::erase_if(entries_, [&](const Entry& e) { return e.first == name; });
}

const Attr* Attrs::find(llvm::StringRef name) const {
  for (const Entry& e : entries_)
    if (e.first == name) return &e.second;
  return nullptr;
}

int64_t Attrs::get_int(llvm::StringRef name, int64_t otherwise) const {
  const auto* value = find_as<int64_t>(*this, name);
  return value ? *value : otherwise;
}

double Attrs::get_float(llvm::StringRef name, double otherwise) const {
  const Attr* attr = find(name);
  if (!attr) return otherwise;
  if (const auto* integer = std::get_if<int64_t>(attr)) return static_cast<double>(*integer);
  return *find_as<double>(*this, name);
}

llvm::StringRef Attrs::get_string(llvm::StringRef name, llvm::StringRef otherwise) const {
  const auto* value = find_as<std::string>(*this, name);
  return value ? llvm::StringRef(*value) : otherwise;
}

llvm::ArrayRef<int64_t> Attrs::get_ints(llvm::StringRef name) const {
  const auto* value = find_as<Ints>(*this, name);
  return value ? llvm::ArrayRef<int64_t>(*value) : llvm::ArrayRef<int64_t>();
}

llvm::ArrayRef<double> Attrs::get_floats(llvm::StringRef name) const {
  const auto* value = find_as<Floats>(*this, name);
  return value ? llvm::ArrayRef<double>(*value) : llvm::ArrayRef<double>();
}

DType Attrs::get_dtype(llvm::StringRef name, DType otherwise) const {
  const auto* value = find_as<DType>(*this, name);
  return value ? *value : otherwise;
}

TensorRef Attrs::get_tensor(llvm::StringRef name) const {
  const auto* value = find_as<TensorRef>(*this, name);
  return value ? *value : nullptr;
}

bool Attrs::operator==(const Attrs& other) const {
  return entries_.size() == other.entries_.size() &&
         std::equal(entries_.begin(), entries_.end(), other.entries_.begin(),
                    [](const Entry& a, const Entry& b) { return a.first == b.first && same(a.second, b.second); });
}

}  // namespace plimsoll
