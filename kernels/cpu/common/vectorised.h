#pragma once

// The two words every hot loop here is written with. A range function works on plain
// pointers, has no threads in it, and is compiled once per instruction set; the dynamic
// linker picks one. Helpers it calls must be inlined to be compiled along with it.

#include <cstdint>

// Levels name features: "arch=haswell" would ask for the maker as well and leave AMD with the plain version.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define PLIMSOLL_VECTORISED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PLIMSOLL_VECTORISED
#endif
#define PLIMSOLL_INLINE inline __attribute__((always_inline))
