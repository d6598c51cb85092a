#pragma once

// Whole numbers in files that other programs read and write.

#include <cstddef>
#include <string>

namespace plimsoll {

// Returns the bytes of `value`, the lowest first.
template <typename T>
std::string little_endian(T value) {
  std::string bytes(sizeof value, '\0');
  for (size_t i = 0; i < sizeof value; ++i) bytes[i] = static_cast<char>(value >> (8 * i));
  return bytes;
}

}  // namespace plimsoll
