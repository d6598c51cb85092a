#include "frontend/log/record_frames.h"

#include "ir/support/little_endian.h"

#include "llvm/Support/Endian.h"

#include <array>

namespace plimsoll {
namespace {

constexpr size_t length_bytes = 8, checksum_bytes = 4;

constexpr std::array<uint32_t, 256> make_table() {
  constexpr uint32_t reversed_polynomial = 0x82f63b78;
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = remainder >> 1 ^ (remainder & 1 ? reversed_polynomial : 0);
    table[byte] = remainder;
  }
  return table;
}

// Checksums of data that hold checksums would be of little use, so that the format changes them.
uint32_t masked_checksum(llvm::StringRef bytes) {
  const uint32_t crc = crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8;
}

bool has_checksum(llvm::StringRef bytes, llvm::StringRef checksum) {
  return llvm::support::endian::read32le(checksum.data()) == masked_checksum(bytes);
}

}  // namespace

uint32_t crc32c(llvm::StringRef bytes) {
  static constexpr std::array<uint32_t, 256> table = make_table();
  uint32_t crc = ~uint32_t{0};
  for (char byte : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<uint8_t>(byte)) & 0xff];
  return ~crc;
}

void write_frame(llvm::raw_ostream& out, llvm::StringRef data) {
  const std::string length = little_endian<uint64_t>(data.size());
  out << length << little_endian<uint32_t>(masked_checksum(length)) << data
      << little_endian<uint32_t>(masked_checksum(data));
}

std::optional<llvm::StringRef> take_frame(llvm::StringRef& bytes) {
  constexpr size_t head_bytes = length_bytes + checksum_bytes;
  if (bytes.size() < head_bytes + checksum_bytes) return std::nullopt;
  const llvm::StringRef length = bytes.take_front(length_bytes);
  if (!has_checksum(length, bytes.substr(length_bytes, checksum_bytes))) return std::nullopt;
  const uint64_t data_bytes = llvm::support::endian::read64le(length.data());
  if (data_bytes > bytes.size() - head_bytes - checksum_bytes) return std::nullopt;
  const llvm::StringRef data = bytes.substr(head_bytes, data_bytes);
  if (!has_checksum(data, bytes.substr(head_bytes + data_bytes, checksum_bytes))) return std::nullopt;
  bytes = bytes.drop_front(head_bytes + data_bytes + checksum_bytes);
  return data;
}

}  // namespace plimsoll
