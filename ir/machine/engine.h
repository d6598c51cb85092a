#pragma once

// Where bytes are, and what moves them. A device computes while copies between its memory and the host's run beside it.

#include <cstdint>

namespace plimsoll {

enum class MemorySpace : uint8_t { Device, Host };

enum class Engine : uint8_t { Compute, ToHost, ToDevice };  // the latter two copy from one memory to the other

constexpr MemorySpace read_space(Engine engine) {
  return engine == Engine::ToDevice ? MemorySpace::Host : MemorySpace::Device;
}
constexpr MemorySpace written_space(Engine engine) {
  return engine == Engine::ToHost ? MemorySpace::Host : MemorySpace::Device;
}

// Of its speed alone, what a copy engine keeps while the other one is at work too.
struct DuplexShares {
  double to_host = 1, to_device = 1;  // above 0, at most 1
};

// What a copy takes from computing, charged where it is issued: something however small it is, and a share of the time
// in which it moves its bytes.
struct CopyInterference {
  double copy_overhead_us = 0, share = 0;

  double us(double copy_us) const { return copy_overhead_us + share * copy_us; }
};

}  // namespace plimsoll
