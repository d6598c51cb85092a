#pragma once

// What a GPU holds beside a plan's arenas while it decodes JPEGs for the steps to come, and the pinned host memory for
// them. The sizes are fixed: an image that does not fit them is decoded by the CPU.

#include "ir/machine/device.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {

inline constexpr llvm::StringLiteral decoding_reserve = "JPEG decoding (nvJPEG)";

struct ImageDecodingMemory {
  static constexpr int64_t mib = int64_t{1} << 20;
  static constexpr int lanes = 3;                         // calls of nvJPEG at once, each with memory of its own
  static constexpr int64_t lane_bytes = 48 * mib;         // decoded images and nvJPEG's own buffers
  static constexpr int64_t planes_bytes = 8 * mib;        // of a lane: what is shown of the images, in f32
  static constexpr int64_t pinned_lane_bytes = 16 * mib;  // nvJPEG's own; planes_bytes are pinned besides
  static constexpr int64_t library_bytes = 64 * mib;      // code, and what the driver takes for the hardware decoder
  static constexpr int64_t pixels = int64_t{1} << 22;     // of the images of one call, and so of one image
  static constexpr int images = 16;                       // of one call at most

  static constexpr int64_t device_bytes() { return lanes * (lane_bytes + planes_bytes) + library_bytes; }
  static constexpr int64_t pinned_bytes() { return lanes * (pinned_lane_bytes + planes_bytes); }
};

inline bool reserves_decoding(const DeviceDescription& device) {
  return llvm::any_of(device.reserves, [](const Reserve& each) { return each.name == decoding_reserve; });
}

// The device with so much less for plans. One that is no GPU stays as it is.
inline DeviceDescription with_decoding(DeviceDescription device) {
  if (device.backend == "cuda" && !reserves_decoding(device))
    device.reserves.push_back({decoding_reserve.str(), ImageDecodingMemory::device_bytes()});
  return device;
}

}  // namespace plimsoll
