#pragma once

// Elements on the device: what each type is computed in, vectors of elements, and access to tensors whose type is
// known at run time only. Conversions mean what the compiler's host tensors mean by them.

#include "kernels/division.h"
#include "kernels/scalar.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>
#include <type_traits>

namespace plimsoll::cuda {

using bf16 = __nv_bfloat16;
using f16 = __half;

inline constexpr int warp_threads = 32;
inline constexpr unsigned whole_warp = 0xffffffff;

// Blocks of a launch whose thread i does item i. Grids hold 2^31 - 1 blocks, more than any tensor here needs.
inline constexpr int block_threads = 256;
inline unsigned blocks_for(int64_t items, int64_t items_per_block = block_threads) {
  return static_cast<unsigned>(divide_up(items, items_per_block));
}

// Consecutive elements that move in one access, or in several of 16 bytes.
template <typename T, int length>
struct alignas(sizeof(T) * length) Vector {
  T at[length];
};

template <int length, typename T>
__device__ Vector<T, length> load_vector(const T* from) {
  return *reinterpret_cast<const Vector<T, length>*>(from);
}

// To global memory. Whole 16-byte words go out as such: of an array's elements the compiler, left to itself, at times
// stores one after the other.
template <int length, typename T>
__device__ void store_vector(T* to, const Vector<T, length>& values) {
  if constexpr (sizeof(values) % sizeof(uint4) == 0) {
    constexpr int words = sizeof(values) / sizeof(uint4);
    uint4 as_words[words];
    memcpy(as_words, values.at, sizeof(values));
#pragma unroll
    for (int word = 0; word < words; ++word) __stwb(reinterpret_cast<uint4*>(to) + word, as_words[word]);
  } else {
    *reinterpret_cast<Vector<T, length>*>(to) = values;
  }
}

// 16 bytes of any type, for kernels that only move bytes.
struct alignas(16) Bytes16 {
  uint64_t low, high;
};

// 16-bit floats are computed in f32, everything else in itself.
__device__ inline float widen(bf16 x) { return __bfloat162float(x); }
__device__ inline float widen(f16 x) { return __half2float(x); }
template <typename T>
__device__ T widen(T x) {
  return x;
}

template <typename T>
using Compute = decltype(widen(T{}));

template <typename T>
__device__ bool is_negative(T x) {
  if constexpr (std::is_unsigned_v<T>)
    return false;
  else
    return x < T{0};
}

// Rounds to nearest even.
template <typename T, typename From>
__device__ T narrow(From x) {
  if constexpr (std::is_same_v<T, bf16>)
    return __float2bfloat16_rn(static_cast<float>(x));
  else if constexpr (std::is_same_v<T, f16>)
    return __float2half_rn(static_cast<float>(x));
  else
    return static_cast<T>(x);
}

// ---- Tensors whose type is a run-time value; F8 has no such access ----

struct AnyTensor {
  const void* data;
  Scalar type;
};

// Calls visit with a null pointer of the element's type; Bool is a byte.
template <typename Visit>
__device__ auto with_element(Scalar type, Visit visit) {
  switch (type) {
    case Scalar::F64: return visit(static_cast<double*>(nullptr));
    case Scalar::F32: return visit(static_cast<float*>(nullptr));
    case Scalar::BF16: return visit(static_cast<bf16*>(nullptr));
    case Scalar::F16: return visit(static_cast<f16*>(nullptr));
    case Scalar::I64: return visit(static_cast<int64_t*>(nullptr));
    case Scalar::I32: return visit(static_cast<int32_t*>(nullptr));
    case Scalar::I16: return visit(static_cast<int16_t*>(nullptr));
    case Scalar::I8: return visit(static_cast<int8_t*>(nullptr));
    case Scalar::U64: return visit(static_cast<uint64_t*>(nullptr));
    case Scalar::U32: return visit(static_cast<uint32_t*>(nullptr));
    case Scalar::U16: return visit(static_cast<uint16_t*>(nullptr));
    default: return visit(static_cast<uint8_t*>(nullptr));
  }
}

// Element i as a double, int64_t or uint64_t; floats become integers by truncation.
template <typename Value>
__device__ Value load_any(const AnyTensor& tensor, int64_t i) {
  return with_element(tensor.type, [&](auto* element) {
    auto stored = widen(static_cast<decltype(element)>(const_cast<void*>(tensor.data))[i]);
    return static_cast<Value>(stored);
  });
}

// Floats round by way of f32, as the host's do; bool is whether the value is not 0.
template <typename Value>
__device__ void store_any(void* data, Scalar type, int64_t i, Value value) {
  if (type == Scalar::Bool) {
    static_cast<uint8_t*>(data)[i] = value != Value{0};
    return;
  }
  with_element(type, [&]<typename T>(T*) {
    T* place = static_cast<T*>(data) + i;
    if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16> || std::is_same_v<T, float>)
      *place = narrow<T>(static_cast<float>(static_cast<double>(value)));
    else if constexpr (std::is_same_v<T, double> || std::is_integral_v<Value>)
      *place = static_cast<T>(value);
    else if (std::is_same_v<T, uint64_t> && !is_negative(value))
      *place = static_cast<T>(value);
    else
      *place = static_cast<T>(static_cast<int64_t>(value));
  });
}

// What the visit gives, or the error of its launches where it gives nothing.
template <typename Visit, typename... Elements>
cudaError_t error_of(Visit visit, Elements*... elements) {
  if constexpr (std::is_void_v<decltype(visit(elements...))>) {
    visit(elements...);
    return cudaGetLastError();
  } else {
    return visit(elements...);
  }
}

// Calls visit with a null pointer of the element's type, for the types whose arithmetic is in f32.
template <typename Visit>
cudaError_t with_f32_math(Scalar type, Visit visit) {
  switch (type) {
    case Scalar::F32: return error_of(visit, static_cast<float*>(nullptr));
    case Scalar::BF16: return error_of(visit, static_cast<bf16*>(nullptr));
    case Scalar::F16: return error_of(visit, static_cast<f16*>(nullptr));
    default: return cudaErrorInvalidValue;
  }
}

// The same for f64 as well.
template <typename Visit>
cudaError_t with_float(Scalar type, Visit visit) {
  return type == Scalar::F64 ? error_of(visit, static_cast<double*>(nullptr)) : with_f32_math(type, visit);
}

// The same for a tensor and the parameters beside it, which are f32 or of the tensor's type.
template <typename Visit>
cudaError_t with_f32_math_pair(Scalar type, Scalar parameter, Visit visit) {
  return with_f32_math(type, [&](auto* element) {
    if (parameter == Scalar::F32) return error_of(visit, element, static_cast<float*>(nullptr));
    return parameter == type ? error_of(visit, element, element) : cudaErrorInvalidValue;
  });
}

// The same with the unsigned integer of an element's bytes, for kernels that move bits.
template <typename Visit>
cudaError_t with_element_bytes(int bytes, Visit visit) {
  switch (bytes) {
    case 1: return error_of(visit, static_cast<uint8_t*>(nullptr));
    case 2: return error_of(visit, static_cast<uint16_t*>(nullptr));
    case 4: return error_of(visit, static_cast<uint32_t*>(nullptr));
    case 8: return error_of(visit, static_cast<uint64_t*>(nullptr));
    default: return cudaErrorInvalidValue;
  }
}

// Where runs of elements move as one: units of up to 16 bytes.
template <typename Visit>
cudaError_t with_unit_bytes(int bytes, Visit visit) {
  return bytes == 16 ? error_of(visit, static_cast<Bytes16*>(nullptr)) : with_element_bytes(bytes, visit);
}

inline bool is_float(Scalar type) { return type <= Scalar::F8E5M2; }

}  // namespace plimsoll::cuda
