#pragma once

// Which machine a rank runs on, in a form that ranks can send each other.

#include <array>

namespace plimsoll {

using HostName = std::array<char, 256>;  // ends with zeros, so that equal names are equal arrays
HostName host_name();

}  // namespace plimsoll
