#pragma once

#include <cstdint>

namespace plimsoll {

// What a group norm does to normalised elements last of all.
enum class NormActivation : uint8_t { None, Relu, Silu };

}  // namespace plimsoll
