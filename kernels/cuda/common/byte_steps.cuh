#pragma once

#include <cstdint>
#include <type_traits>

namespace plimsoll::cuda {

// The element `count` steps of so many bytes ahead. A step of 32 bits makes this one multiplication with its addition,
// where offsets in elements would take several instructions.
template <typename T>
__device__ T* step_ahead(T* from, int32_t count, int32_t step_bytes) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(from) + int64_t{count} * step_bytes);
}

}  // namespace plimsoll::cuda
