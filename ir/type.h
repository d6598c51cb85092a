#pragma once

// Element types, static shapes, and the host tensor that constants, weights and
// the reference interpreter use.

#include "ir/support/status.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace plimsoll {

enum class DType : uint8_t {
  F64,
  F32,
  BF16,
  F16,
  F8E4M3,
  F8E5M2,
  I64,
  I32,
  I16,
  I8,
  U64,
  U32,
  U16,
  U8,
  Bool,
};
inline constexpr int dtype_count = 15;

llvm::StringRef dtype_name(DType dtype);  // "f32", "bf16", "i64", "bool", ...
std::optional<DType> parse_dtype(llvm::StringRef name);
int64_t dtype_bytes(DType dtype);
bool is_float(DType dtype);
bool is_integer(DType dtype);  // bool is not an integer
bool is_signed_integer(DType dtype);
bool is_16_bit_float(DType dtype);  // two bytes or fewer

using Shape = llvm::SmallVector<int64_t, 4>;

int64_t element_count(llvm::ArrayRef<int64_t> shape);  // 1 for a scalar

// For shapes that a file gives: no dimension is negative, and those that are not 0 hold at most 2^48 elements, so that
// no count of elements or bytes of any part of the shape overflows.
bool is_countable(llvm::ArrayRef<int64_t> shape);

// One dtype and one static shape. Row-major and dense wherever it has bytes.
struct Type {
  DType dtype = DType::F32;
  Shape shape;

  Type() = default;
  Type(DType dtype, llvm::ArrayRef<int64_t> shape) : dtype(dtype), shape(shape.begin(), shape.end()) {}

  int64_t rank() const { return static_cast<int64_t>(shape.size()); }
  int64_t elements() const { return element_count(shape); }
  int64_t bytes() const { return elements() * dtype_bytes(dtype); }
  bool operator==(const Type& other) const { return dtype == other.dtype && shape == other.shape; }
  bool operator!=(const Type& other) const { return !(*this == other); }
};

std::string to_string(const Type& type);               // "f32[2,3]", "i64[]"
std::string to_string(llvm::ArrayRef<int64_t> shape);  // "[2,3]"
Result<Type> parse_type(llvm::StringRef text);

// Strides in elements of a dense row-major shape.
Shape row_major_strides(llvm::ArrayRef<int64_t> shape);

// Numpy broadcasting of two shapes; none when they do not agree.
std::optional<Shape> broadcast_shapes(llvm::ArrayRef<int64_t> a, llvm::ArrayRef<int64_t> b);

// A dense tensor somewhere in host memory, not owned. Reads convert from the stored dtype, writes
// round to it (nearest even; integers saturate never, they wrap as a C cast does).
struct TensorView {
  Type type;
  void* data = nullptr;

  int64_t elements() const { return type.elements(); }
  double get(int64_t index) const;       // any dtype; bool as 0 or 1
  int64_t get_int(int64_t index) const;  // exact for integers and bool; truncates floats
  void set(int64_t index, double value) const;
  void set_int(int64_t index, int64_t value) const;
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// A dense tensor that owns its bytes (64-byte aligned, zero at first). Copies share nothing.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(const Type& type);
  Tensor(const Type& type, const void* bytes);  // copies type.bytes() bytes

  static Tensor of_ints(llvm::ArrayRef<int64_t> values);  // i64[n]
  static Tensor of_floats(llvm::ArrayRef<double> values, DType dtype, llvm::ArrayRef<int64_t> shape);
  static Tensor scalar(double value, DType dtype);
  static Tensor scalar_int(int64_t value, DType dtype = DType::I64);

  Tensor(const Tensor& other);
  Tensor& operator=(const Tensor& other);
  // noexcept, so that growing vectors move tensors and views into them stay valid.
  Tensor(Tensor&& other) noexcept : type_(std::move(other.type_)), bytes_(std::move(other.bytes_)) {}
  Tensor& operator=(Tensor&& other) noexcept {
    type_ = std::move(other.type_);
    bytes_ = std::move(other.bytes_);
    return *this;
  }

  const Type& type() const { return type_; }
  void* data() { return bytes_.get(); }
  const void* data() const { return bytes_.get(); }
  // The view can write; callers that hold a const Tensor only read through it.
  TensorView view() const { return {type_, bytes_.get()}; }
  double get(int64_t index) const { return view().get(index); }
  int64_t get_int(int64_t index) const { return view().get_int(index); }
  llvm::SmallVector<int64_t, 8> ints() const;  // all elements, flat
  Tensor reshaped(llvm::ArrayRef<int64_t> shape) const;

  bool operator==(const Tensor& other) const;  // same type and same bytes

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  Type type_;
  std::unique_ptr<std::byte[], Free> bytes_;
};

// Scalar conversions with the rounding the views use.
uint16_t to_bf16(float value);
float from_bf16(uint16_t bits);
uint16_t to_f16(float value);
float from_f16(uint16_t bits);

}  // namespace plimsoll
