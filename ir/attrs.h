#pragma once

// The attributes of a node: a short list sorted by name, so that two nodes with
// the same attributes print, compare and serialise alike.

#include "ir/type.h"

#include <initializer_list>
#include <utility>
#include <variant>
#include <vector>

namespace plimsoll {

using Ints = llvm::SmallVector<int64_t, 4>;
using Floats = llvm::SmallVector<double, 4>;
using TensorRef = std::shared_ptr<const Tensor>;
using Attr = std::variant<int64_t, double, std::string, Ints, Floats, DType, TensorRef>;

class Attrs {
 public:
  using Entry = std::pair<std::string, Attr>;

  Attrs() = default;
  Attrs(std::initializer_list<Entry> entries) {
    for (const Entry& entry : entries) set(entry.first, entry.second);
  }

  void set(llvm::StringRef name, Attr value);
  void erase(llvm::StringRef name);
  const Attr* find(llvm::StringRef name) const;
  bool has(llvm::StringRef name) const { return find(name) != nullptr; }

  // The attribute, or the default when there is none. Asking for the wrong kind is our own bug; that a parsed text
  // has the right kinds is checked against the op's record (ir/op_def.h: infer).
  int64_t get_int(llvm::StringRef name, int64_t otherwise = 0) const;
  double get_float(llvm::StringRef name, double otherwise = 0) const;  // an int reads as a float
  llvm::StringRef get_string(llvm::StringRef name, llvm::StringRef otherwise = "") const;
  llvm::ArrayRef<int64_t> get_ints(llvm::StringRef name) const;  // empty when absent
  llvm::ArrayRef<double> get_floats(llvm::StringRef name) const;
  DType get_dtype(llvm::StringRef name, DType otherwise = DType::F32) const;
  TensorRef get_tensor(llvm::StringRef name) const;  // null when absent

  llvm::ArrayRef<Entry> entries() const { return entries_; }
  bool empty() const { return entries_.empty(); }
  bool operator==(const Attrs& other) const;  // tensors by content

 private:
  llvm::SmallVector<Entry, 2> entries_;
};

}  // namespace plimsoll
