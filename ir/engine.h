#pragma once

// The memories of a device and its host, and the engines that compute there or copy from one memory to the other.

#include <cstdint>

namespace plimsoll {

enum class MemorySpace : uint8_t { Device, Host };

enum class Engine : uint8_t {
  Compute,
  ToHost,    // copies from the device's memory to the host's
  ToDevice,  // copies the other way
  Ranks,     // talks to other ranks
};
inline constexpr int engine_count = 4;

constexpr bool is_copy(Engine engine) { return engine == Engine::ToHost || engine == Engine::ToDevice; }

constexpr MemorySpace read_space(Engine engine) {
  return engine == Engine::ToDevice ? MemorySpace::Host : MemorySpace::Device;
}
constexpr MemorySpace written_space(Engine engine) {
  return engine == Engine::ToHost ? MemorySpace::Host : MemorySpace::Device;
}

// The speed of each copy engine while both run, as a share of its speed alone.
struct DuplexShares {
  double to_host = 1, to_device = 1;  // above 0, at most 1
};

// The speeds of computing and of a collective beside it, as shares of their speeds alone, and the part of a
// collective's time that launching takes, which neighbours of one kind share.
struct CollectiveShares {
  double link = 1, compute = 1;  // above 0, at most 1
  double launch_us = 0;

  // What computing loses at least, as a share of a collective's time alone: it runs beside it, or waits for it.
  double min_cost() const { return (1 - compute) / link < 1 ? (1 - compute) / link : 1; }
  double min_cost_us(double alone_us) const { return alone_us > launch_us ? (alone_us - launch_us) * min_cost() : 0; }
};

// Compute time lost per copy, charged where the copy is issued: a constant, however small the copy is, plus a share of
// the time in which it moves its bytes.
struct CopyInterference {
  double copy_overhead_us = 0, share = 0;

  double us(double copy_us) const { return copy_overhead_us + share * copy_us; }
};

}  // namespace plimsoll
