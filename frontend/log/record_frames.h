#pragma once

// The framing of TFRecord files: the length of each record and its bytes, both with a checksum, CRC-32C (Castagnoli).

#include "llvm/ADT/StringRef.h"
#include "llvm/Support/raw_ostream.h"

#include <cstdint>
#include <optional>

namespace plimsoll {

// As x86's crc32 instruction computes it. zlib's and LLVM's CRC-32 have another polynomial.
uint32_t crc32c(llvm::StringRef bytes);

void write_frame(llvm::raw_ostream& out, llvm::StringRef data);
// Takes the first frame's data off `bytes`; none where there is no whole one or a checksum is wrong.
std::optional<llvm::StringRef> take_frame(llvm::StringRef& bytes);

}  // namespace plimsoll
