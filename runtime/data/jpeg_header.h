#pragma once

// Which JPEGs every decoder understands alike.

#include "runtime/data/image.h"

#include <optional>

namespace plimsoll {

// The size of a JPEG that is whole and of the common kind: baseline or extended sequential Huffman code of 8 bits in
// one scan, three components of YCbCr, the last two halved at most along each side, ended by its end marker. None for
// everything else: progressive, CMYK, RGB, gray, 12-bit, arithmetic-coded, truncated, or with something in its scan
// that is no part of one. Damage of the code between markers is not seen.
std::optional<ImageSize> size_of_plain_jpeg(llvm::ArrayRef<uint8_t> bytes);

}  // namespace plimsoll
