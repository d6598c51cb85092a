#pragma once

// Where bytes are, and what moves them. A device computes while copies between its memory and the host's run beside it.

#include <cstdint>

namespace plimsoll {

enum class MemorySpace : uint8_t { Device, Host };

enum class Channel : uint8_t { Compute, ToHost, ToDevice };  // the latter two copy from one memory to the other

constexpr MemorySpace read_space(Channel channel) { return channel == Channel::ToDevice ? MemorySpace::Host : MemorySpace::Device; }
constexpr MemorySpace written_space(Channel channel) { return channel == Channel::ToHost ? MemorySpace::Host : MemorySpace::Device; }

// Of its speed alone, what a copy channel keeps while the other one is at work too.
struct CopyShares {
  double to_host = 1, to_device = 1;  // above 0, at most 1
};

// What copies take from computing: a little where one is issued, however small, and a share of the time in which it moves its bytes. That is
// charged where it is issued, too.
struct CopyTolls {
  double fork_us = 0, to_host = 0, to_device = 0;

  double us(Channel channel, double copy_us) const { return fork_us + (channel == Channel::ToHost ? to_host : to_device) * copy_us; }
};

}  // namespace plimsoll
