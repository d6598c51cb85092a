#include "runtime/data/jpeg_header.h"

#include <cstring>

// Markers by ITU-T T.81; what the application segments of JFIF and Adobe say of colors as libjpeg reads them.

namespace plimsoll {
namespace {

enum Marker : uint8_t {
  BaselineFrame = 0xc0,
  ExtendedFrame = 0xc1,
  HuffmanTables = 0xc4,
  LastFrame = 0xcf,
  FirstRestart = 0xd0,
  LastRestart = 0xd7,
  Start = 0xd8,
  End = 0xd9,
  Scan = 0xda,
  Adobe = 0xee,
};
constexpr uint8_t marker_prefix = 0xff;

int64_t number(llvm::ArrayRef<uint8_t> bytes, size_t at) { return bytes[at] << 8 | bytes[at + 1]; }

std::optional<ImageSize> size_of_frame(llvm::ArrayRef<uint8_t> frame) {
  constexpr size_t components = 3, fixed_bytes = 6, component_bytes = 3;
  if (frame.size() != fixed_bytes + components * component_bytes || frame[0] != 8 || frame[5] != components)
    return std::nullopt;
  const auto sampling = [&](size_t c) { return frame[fixed_bytes + c * component_bytes + 1]; };
  const auto id = [&](size_t c) { return frame[fixed_bytes + c * component_bytes]; };
  if (id(0) == 'R' && id(1) == 'G' && id(2) == 'B') return std::nullopt;
  const bool is_known = sampling(0) == 0x11 || sampling(0) == 0x21 || sampling(0) == 0x22 || sampling(0) == 0x12;
  if (!is_known || sampling(1) != 0x11 || sampling(2) != 0x11) return std::nullopt;
  const ImageSize size{number(frame, 3), number(frame, 1)};
  return size.width > 0 && size.height > 0 ? std::optional(size) : std::nullopt;
}

// Whether Huffman code and restarts alone follow, up to an end marker that is the end of the file.
bool is_one_scan(llvm::ArrayRef<uint8_t> code) {
  while (!code.empty()) {
    const void* found = std::memchr(code.data(), marker_prefix, code.size());
    if (!found) return false;
    code = code.drop_front(static_cast<size_t>(static_cast<const uint8_t*>(found) - code.data()));
    if (code.size() < 2) return false;
    const uint8_t marker = code[1];
    code = code.drop_front(2);
    if (marker == End) return code.empty();
    if (marker != 0 && (marker < FirstRestart || marker > LastRestart)) return false;
  }
  return false;
}

}  // namespace

std::optional<ImageSize> size_of_plain_jpeg(llvm::ArrayRef<uint8_t> bytes) {
  if (bytes.size() < 4 || bytes[0] != marker_prefix || bytes[1] != Start) return std::nullopt;
  std::optional<ImageSize> size;
  for (bytes = bytes.drop_front(2); bytes.size() >= 4 && bytes[0] == marker_prefix;) {
    const uint8_t marker = bytes[1];
    const auto length = static_cast<size_t>(number(bytes, 2));
    if (length < 2 || length + 2 > bytes.size()) return std::nullopt;
    const llvm::ArrayRef<uint8_t> segment = bytes.slice(4, length - 2);
    bytes = bytes.drop_front(length + 2);
    if (marker == BaselineFrame || marker == ExtendedFrame) {
      if (size) return std::nullopt;
      size = size_of_frame(segment);
      if (!size) return std::nullopt;
    } else if (marker > ExtendedFrame && marker <= LastFrame && marker != HuffmanTables) {
      return std::nullopt;  // another kind of frame, or arithmetic code
    } else if (marker == Adobe && segment.size() >= 12 && std::memcmp(segment.data(), "Adobe", 5) == 0) {
      if (segment[11] != 1) return std::nullopt;  // not YCbCr
    } else if (marker == Scan) {
      return size && !segment.empty() && segment[0] == 3 && is_one_scan(bytes) ? size : std::nullopt;
    }
  }
  return std::nullopt;
}

}  // namespace plimsoll
