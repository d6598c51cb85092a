#pragma once

// The names a record gives its operands, results and attributes. The lists have a fixed capacity, so that records are
// constants of the program.

#include "ir/attrs.h"

#include <cassert>

namespace plimsoll {

template <typename T, size_t capacity>
class FixedList {
 public:
  constexpr FixedList() = default;
  constexpr FixedList(std::initializer_list<T> items) {
    for (const T& item : items) items_[size_++] = item;
  }
  constexpr FixedList with(std::initializer_list<T> more) const {
    FixedList list = *this;
    for (const T& item : more) list.items_[list.size_++] = item;
    return list;
  }
  constexpr size_t size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr const T* begin() const { return items_; }
  constexpr const T* end() const { return items_ + size_; }
  constexpr const T& operator[](size_t i) const { return items_[i]; }
  constexpr const T& back() const { return items_[size_ - 1]; }

 private:
  T items_[capacity]{};
  size_t size_ = 0;
};

// An operand or a result as its record writes it. "bias?" is optional; the last one may stand for more: "xs+" for one
// or more, "xs*" for any number. A result "dbias?has_bias" is there when the operand or the attribute named behind the
// mark is.
struct Port {
  enum class Kind : uint8_t { Required, Optional, OneOrMore, AnyNumber };

  constexpr Port() = default;
  template <size_t size>
  constexpr Port(const char (&text)[size]) {
    size_t length = 0;
    while (length + 1 < size && text[length] != '?' && text[length] != '+' && text[length] != '*') ++length;
    name = llvm::StringRef(text, length);
    const char mark = text[length];
    kind = mark == '?'   ? Kind::Optional
           : mark == '+' ? Kind::OneOrMore
           : mark == '*' ? Kind::AnyNumber
                         : Kind::Required;
    if (mark == '?') condition = llvm::StringRef(text + length + 1, size - length - 2);
  }
  constexpr bool is_required() const { return kind == Kind::Required || kind == Kind::OneOrMore; }
  constexpr bool repeats() const { return kind == Kind::OneOrMore || kind == Kind::AnyNumber; }

  llvm::StringRef name, condition;
  Kind kind = Kind::Required;
};
using Ports = FixedList<Port, 10>;
size_t index_of(const Ports& ports, llvm::StringRef name);  // must exist

enum class AttrKind : uint8_t { Int, Float, String, Ints, Floats, DType, Tensor };  // in the order of Attr
enum class AttrNeed : uint8_t { Required, Optional };

// An attribute: one with a value instead of a kind is optional and has this default.
struct AttrSpec {
  using Name = llvm::StringLiteral;

  constexpr AttrSpec() = default;
  constexpr AttrSpec(Name name, AttrKind kind, AttrNeed need = AttrNeed::Required)
      : name(name), kind(kind), need(need) {}
  constexpr AttrSpec(Name name, int value) : AttrSpec(name, AttrKind::Int, true) { integer = value; }
  constexpr AttrSpec(Name name, double value) : AttrSpec(name, AttrKind::Float, true) { number = value; }
  constexpr AttrSpec(Name name, llvm::StringLiteral value) : AttrSpec(name, AttrKind::String, true) { text = value; }

  llvm::StringRef name;
  AttrKind kind = AttrKind::Int;
  AttrNeed need = AttrNeed::Required;
  bool has_default = false;
  int64_t integer = 0;
  double number = 0;
  llvm::StringRef text;

 private:
  constexpr AttrSpec(Name name, AttrKind kind, bool has_default)
      : name(name), kind(kind), need(AttrNeed::Optional), has_default(has_default) {}
};
using AttrSpecs = FixedList<AttrSpec, 14>;
llvm::StringRef kind_name(AttrKind kind);  // "an integer"
// Fails on a required attribute that is missing, one of the wrong kind, and one that the record does not name. An int
// passes for a float.
Status check_attrs(const Attrs& attrs, const AttrSpecs& specs);

// Names of a result and of the operand whose bytes it may take.
struct NamePair {
  llvm::StringRef result, operand;
};
using NamePairs = FixedList<NamePair, 4>;

// An operand or a result by its name, or by its place in code that serves many ops.
class PortKey {
 public:
  PortKey(llvm::StringRef name) : name_(name) {}
  template <size_t size>
  PortKey(const char (&name)[size]) : name_(name, size - 1) {}
  PortKey(size_t index) : index_(index) {}
  size_t in(const Ports& ports) const { return name_.empty() ? index_ : index_of(ports, name_); }

 private:
  llvm::StringRef name_;
  size_t index_ = 0;
};

}  // namespace plimsoll
