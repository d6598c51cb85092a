#include "ir/type.h"

// Dtype facts live in one table; conversions go through double (or int64 for
// integers), because what matters here is meaning, not speed.

#include "llvm/ADT/StringExtras.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace plimsoll {
namespace {

struct DTypeFacts {
  llvm::StringLiteral name;
  int64_t bytes;
  enum class Kind { Float, Signed, Unsigned, Bool } kind;
};
using Kind = DTypeFacts::Kind;

constexpr std::array<DTypeFacts, dtype_count> dtype_facts = {{
    {"f64", 8, Kind::Float},
    {"f32", 4, Kind::Float},
    {"bf16", 2, Kind::Float},
    {"f16", 2, Kind::Float},
    {"f8e4m3", 1, Kind::Float},
    {"f8e5m2", 1, Kind::Float},
    {"i64", 8, Kind::Signed},
    {"i32", 4, Kind::Signed},
    {"i16", 2, Kind::Signed},
    {"i8", 1, Kind::Signed},
    {"u64", 8, Kind::Unsigned},
    {"u32", 4, Kind::Unsigned},
    {"u16", 2, Kind::Unsigned},
    {"u8", 1, Kind::Unsigned},
    {"bool", 1, Kind::Bool},
}};

const DTypeFacts& facts(DType dtype) { return dtype_facts[static_cast<size_t>(dtype)]; }

// An 8-bit float by its field widths (OCP FP8, Micikevicius et al. 2022). E4M3 has no
// infinity: only the all-ones mantissa of the top exponent is NaN.
double decode_f8(uint8_t bits, int mantissa_bits, int bias, bool has_infinity) {
  int exponent_bits = 7 - mantissa_bits;
  int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  int mantissa = bits & ((1 << mantissa_bits) - 1);
  double sign = bits & 0x80 ? -1.0 : 1.0;
  bool top = exponent == (1 << exponent_bits) - 1;
  if (top && has_infinity) return mantissa == 0 ? sign * INFINITY : NAN;
  if (top && mantissa == (1 << mantissa_bits) - 1) return NAN;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

// Nearest by search over the 128 magnitudes: there are few, and ties go to the even code.
uint8_t encode_f8(double value, int mantissa_bits, int bias, bool has_infinity) {
  uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return sign | 0x7f;
  double magnitude = std::fabs(value);
  int largest = has_infinity ? 0x7b : 0x7e;
  int low = 0, high = largest;
  while (low < high) {
    int middle = (low + high + 1) / 2;
    if (decode_f8(static_cast<uint8_t>(middle), mantissa_bits, bias, has_infinity) <= magnitude)
      low = middle;
    else
      high = middle - 1;
  }
  if (low == largest) {
    double step = std::ldexp(
        1.0, std::ilogb(decode_f8(static_cast<uint8_t>(largest), mantissa_bits, bias, has_infinity)) - mantissa_bits);
    double limit = decode_f8(static_cast<uint8_t>(largest), mantissa_bits, bias, has_infinity) + step / 2;
    if (magnitude >= limit) return sign | static_cast<uint8_t>(has_infinity ? 0x7c : 0x7f);
    return sign | static_cast<uint8_t>(largest);
  }
  double below = decode_f8(static_cast<uint8_t>(low), mantissa_bits, bias, has_infinity);
  double above = decode_f8(static_cast<uint8_t>(low + 1), mantissa_bits, bias, has_infinity);
  double middle = (below + above) / 2;
  bool up = magnitude > middle || (magnitude == middle && (low & 1));
  return sign | static_cast<uint8_t>(low + (up ? 1 : 0));
}

}  // namespace

llvm::StringRef dtype_name(DType dtype) { return facts(dtype).name; }
int64_t dtype_bytes(DType dtype) { return facts(dtype).bytes; }
bool is_float(DType dtype) { return facts(dtype).kind == Kind::Float; }
bool is_signed_integer(DType dtype) { return facts(dtype).kind == Kind::Signed; }
bool is_16_bit_float(DType dtype) { return is_float(dtype) && dtype_bytes(dtype) <= 2; }
bool is_integer(DType dtype) { return facts(dtype).kind == Kind::Signed || facts(dtype).kind == Kind::Unsigned; }

std::optional<DType> parse_dtype(llvm::StringRef name) {
  for (int i = 0; i < dtype_count; ++i)
    if (dtype_facts[i].name == name) return static_cast<DType>(i);
  return std::nullopt;
}

int64_t element_count(llvm::ArrayRef<int64_t> shape) {
  int64_t count = 1;
  for (int64_t dim : shape) count *= dim;
  return count;
}

bool is_countable(llvm::ArrayRef<int64_t> shape) {
  constexpr int64_t most = int64_t{1} << 48;
  int64_t count = 1;
  for (int64_t dim : shape) {
    if (dim < 0 || std::max<int64_t>(dim, 1) > most / count) return false;
    count *= std::max<int64_t>(dim, 1);
  }
  return true;
}

std::string to_string(llvm::ArrayRef<int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? "," : "") + std::to_string(shape[i]);
  return text + "]";
}

std::string to_string(const Type& type) { return dtype_name(type.dtype).str() + to_string(type.shape); }

Result<Type> parse_type(llvm::StringRef text) {
  auto [name, rest] = text.split('[');
  std::optional<DType> dtype = parse_dtype(name.trim());
  if (!dtype || !rest.consume_back("]")) return model_error("'" + text + "' is not a type");
  Type type(*dtype, {});
  if (rest.trim().empty()) return type;
  llvm::SmallVector<llvm::StringRef, 6> dims;
  rest.split(dims, ',');
  for (llvm::StringRef dim : dims) {
    int64_t value = 0;
    if (dim.trim().getAsInteger(10, value) || value < 0)
      return model_error("'" + dim + "' is not a dimension in '" + text + "'");
    type.shape.push_back(value);
  }
  return type;
}

Shape row_major_strides(llvm::ArrayRef<int64_t> shape) {
  Shape strides(shape.size(), 1);
  for (int64_t i = static_cast<int64_t>(shape.size()) - 2; i >= 0; --i) strides[i] = strides[i + 1] * shape[i + 1];
  return strides;
}

std::optional<Shape> broadcast_shapes(llvm::ArrayRef<int64_t> a, llvm::ArrayRef<int64_t> b) {
  if (a.size() < b.size()) std::swap(a, b);
  Shape out(a.begin(), a.end());
  size_t shift = a.size() - b.size();
  for (size_t i = 0; i < b.size(); ++i) {
    int64_t& dim = out[shift + i];
    if (dim == b[i] || b[i] == 1) continue;
    if (dim != 1) return std::nullopt;
    dim = b[i];
  }
  return out;
}

uint16_t to_bf16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t to_f16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // 65520 and above round to infinity
  if (magnitude < 0x38800000) {                       // subnormal: let the float adder round
    float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(shifted) - 0x3f000000);
  }
  magnitude += 0xc8000fff + ((magnitude >> 13) & 1);
  return sign | static_cast<uint16_t>(magnitude >> 13);
}

float from_f16(uint16_t bits) {
  uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  uint32_t exponent = (bits >> 10) & 0x1f, mantissa = bits & 0x3ff;
  if (exponent == 0) {
    float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign ? -magnitude : magnitude;
  }
  uint32_t wide = exponent == 0x1f ? 0xff : exponent + 112;
  return std::bit_cast<float>(sign | (wide << 23) | (mantissa << 13));
}

// Without its fraction; what lies beyond the numbers of `Int` becomes the nearest of them, and NaN 0.
template <typename Int>
static Int truncated(double value) {
  using Limits = std::numeric_limits<Int>;
  const double above = std::ldexp(1.0, Limits::digits);
  if (std::isnan(value)) return 0;
  if (value >= above) return Limits::max();
  if (value < static_cast<double>(Limits::min())) return Limits::min();
  return static_cast<Int>(value);
}

double TensorView::get(int64_t i) const {
  switch (type.dtype) {
    case DType::F64: return as<double>()[i];
    case DType::F32: return as<float>()[i];
    case DType::BF16: return from_bf16(as<uint16_t>()[i]);
    case DType::F16: return from_f16(as<uint16_t>()[i]);
    case DType::F8E4M3: return decode_f8(as<uint8_t>()[i], 3, 7, false);
    case DType::F8E5M2: return decode_f8(as<uint8_t>()[i], 2, 15, true);
    case DType::U64: return static_cast<double>(as<uint64_t>()[i]);
    default: return static_cast<double>(get_int(i));
  }
}

int64_t TensorView::get_int(int64_t i) const {
  switch (type.dtype) {
    case DType::I64: return as<int64_t>()[i];
    case DType::I32: return as<int32_t>()[i];
    case DType::I16: return as<int16_t>()[i];
    case DType::I8: return as<int8_t>()[i];
    case DType::U64: return static_cast<int64_t>(as<uint64_t>()[i]);
    case DType::U32: return as<uint32_t>()[i];
    case DType::U16: return as<uint16_t>()[i];
    case DType::U8: return as<uint8_t>()[i];
    case DType::Bool: return as<uint8_t>()[i] != 0;
    default: return truncated<int64_t>(get(i));
  }
}

void TensorView::set(int64_t i, double value) const {
  switch (type.dtype) {
    case DType::F64: as<double>()[i] = value; return;
    case DType::F32: as<float>()[i] = static_cast<float>(value); return;
    case DType::BF16: as<uint16_t>()[i] = to_bf16(static_cast<float>(value)); return;
    case DType::F16: as<uint16_t>()[i] = to_f16(static_cast<float>(value)); return;
    case DType::F8E4M3: as<uint8_t>()[i] = encode_f8(value, 3, 7, false); return;
    case DType::F8E5M2: as<uint8_t>()[i] = encode_f8(value, 2, 15, true); return;
    case DType::U64:
      as<uint64_t>()[i] = value < 0 ? static_cast<uint64_t>(truncated<int64_t>(value)) : truncated<uint64_t>(value);
      return;
    case DType::Bool: as<uint8_t>()[i] = value != 0; return;
    default: set_int(i, truncated<int64_t>(value)); return;
  }
}

void TensorView::set_int(int64_t i, int64_t value) const {
  switch (type.dtype) {
    case DType::I64: as<int64_t>()[i] = value; return;
    case DType::I32: as<int32_t>()[i] = static_cast<int32_t>(value); return;
    case DType::I16: as<int16_t>()[i] = static_cast<int16_t>(value); return;
    case DType::I8: as<int8_t>()[i] = static_cast<int8_t>(value); return;
    case DType::U64: as<uint64_t>()[i] = static_cast<uint64_t>(value); return;
    case DType::U32: as<uint32_t>()[i] = static_cast<uint32_t>(value); return;
    case DType::U16: as<uint16_t>()[i] = static_cast<uint16_t>(value); return;
    case DType::U8: as<uint8_t>()[i] = static_cast<uint8_t>(value); return;
    case DType::Bool: as<uint8_t>()[i] = value != 0; return;
    default: set(i, static_cast<double>(value)); return;
  }
}

void Tensor::Free::operator()(std::byte* p) const { std::free(p); }

Tensor::Tensor(const Type& type) : type_(type) {
  size_t bytes = (static_cast<size_t>(type.bytes()) + 63) / 64 * 64;
  if (bytes == 0) bytes = 64;
  auto* p = static_cast<std::byte*>(std::aligned_alloc(64, bytes));
  std::memset(p, 0, bytes);
  bytes_.reset(p);
}

Tensor::Tensor(const Type& type, const void* bytes) : Tensor(type) {
  // An empty tensor may come from no address, with which memcpy must not be called.
  std::copy_n(static_cast<const std::byte*>(bytes), type.bytes(), bytes_.get());
}

Tensor::Tensor(const Tensor& other) {
  if (other.bytes_) *this = Tensor(other.type_, other.bytes_.get());
}

Tensor& Tensor::operator=(const Tensor& other) {
  if (this != &other) *this = Tensor(other);
  return *this;
}

Tensor Tensor::of_ints(llvm::ArrayRef<int64_t> values) {
  return Tensor(Type(DType::I64, {static_cast<int64_t>(values.size())}), values.data());
}

Tensor Tensor::of_floats(llvm::ArrayRef<double> values, DType dtype, llvm::ArrayRef<int64_t> shape) {
  Tensor tensor(Type(dtype, shape));
  for (size_t i = 0; i < values.size(); ++i) tensor.view().set(static_cast<int64_t>(i), values[i]);
  return tensor;
}

Tensor Tensor::scalar(double value, DType dtype) { return of_floats({value}, dtype, {}); }

Tensor Tensor::scalar_int(int64_t value, DType dtype) {
  Tensor tensor(Type(dtype, {}));
  tensor.view().set_int(0, value);
  return tensor;
}

llvm::SmallVector<int64_t, 8> Tensor::ints() const {
  llvm::SmallVector<int64_t, 8> values;
  for (int64_t i = 0; i < type_.elements(); ++i) values.push_back(get_int(i));
  return values;
}

Tensor Tensor::reshaped(llvm::ArrayRef<int64_t> shape) const { return Tensor(Type(type_.dtype, shape), bytes_.get()); }

bool Tensor::operator==(const Tensor& other) const {
  return type_ == other.type_ &&
         (type_.bytes() == 0 || std::memcmp(bytes_.get(), other.bytes_.get(), static_cast<size_t>(type_.bytes())) == 0);
}

}  // namespace plimsoll
