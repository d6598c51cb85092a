#pragma once

#include <cstdint>

namespace plimsoll {

// A number that differs from build to build of the program or the library that this is part of, made of what the linker
// notes there (--build-id). 0 where it notes nothing.
uint64_t build_id();

}  // namespace plimsoll
