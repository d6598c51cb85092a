#include "runtime/data/tar_file.h"

#include "runtime/data/input_file.h"

#include "llvm/ADT/STLExtras.h"

#include <array>
#include <optional>

namespace plimsoll {
namespace {

constexpr int64_t block_bytes = 512;
constexpr int64_t longest_name = int64_t{1} << 16;
using Block = std::array<char, block_bytes>;

// A text field ends at its first NUL or at its width.
llvm::StringRef text_field(const Block& block, size_t at, size_t width) {
  return llvm::StringRef(block.data() + at, width).split('\0').first;
}

// Octal digits, or with the first bit set a big-endian number of base 256 (GNU).
std::optional<int64_t> number_field(const Block& block, size_t at, size_t width) {
  int64_t value = 0;
  if ((static_cast<uint8_t>(block[at]) & 0x80) != 0) {
    for (size_t i = at + width - 7; i < at + width; ++i) value = value << 8 | static_cast<uint8_t>(block[i]);
    return value;
  }
  const llvm::StringRef digits = text_field(block, at, width).trim();
  if (digits.empty()) return 0;
  if (digits.getAsInteger(8, value) || value < 0) return std::nullopt;
  return value;
}

bool has_checksum(const Block& block) {
  const std::optional<int64_t> stored = number_field(block, 148, 8);
  int64_t sum = 0;
  for (size_t i = 0; i < block.size(); ++i) sum += i >= 148 && i < 156 ? ' ' : static_cast<uint8_t>(block[i]);
  return stored == sum;
}

// The path in the records "length path=name\n" of a pax header; empty without one.
std::string pax_path(llvm::StringRef records) {
  while (!records.empty()) {
    size_t length = 0;
    if (records.split(' ').first.getAsInteger(10, length) || length == 0 || length > records.size()) return "";
    llvm::StringRef record = records.take_front(length).split(' ').second;
    if (record.consume_front("path=")) return record.rtrim('\n').str();
    records = records.drop_front(length);
  }
  return "";
}

std::string name_of(const Block& block) {
  const llvm::StringRef name = text_field(block, 0, 100);
  const bool is_ustar = text_field(block, 257, 5) == "ustar";
  const llvm::StringRef prefix = is_ustar ? text_field(block, 345, 155) : "";
  return prefix.empty() || text_field(block, 257, 8) == "ustar  " ? name.str() : (prefix + "/" + name).str();
}

}  // namespace

Result<std::vector<TarMember>> list_tar(llvm::StringRef path) {
  Result<InputFile> file = InputFile::open(path);
  if (!file) return file.takeError();
  std::vector<TarMember> members;
  std::string long_name;  // of the next member, from a header before it
  Block block;
  for (int64_t at = 0; at + block_bytes <= file->bytes();) {
    if (Status s = file->read_at(at, block.data(), block_bytes)) return s;
    if (llvm::all_of(block, [](char c) { return c == 0; })) break;  // the end of the archive
    const std::optional<int64_t> bytes = number_field(block, 124, 12);
    if (!has_checksum(block) || !bytes)
      return model_error(path + ": damaged tar archive, or none: no header at byte " + llvm::Twine(at));
    at += block_bytes;
    if (*bytes > file->bytes() - at) return model_error(path + ": ends within '" + name_of(block) + "'");
    const char kind = block[156];
    if (kind == 'L' || kind == 'x') {
      if (*bytes > longest_name) return model_error(path + ": a name of " + llvm::Twine(*bytes) + " bytes");
      std::string text(static_cast<size_t>(*bytes), '\0');
      if (Status s = file->read_at(at, text.data(), *bytes)) return s;
      const std::string name = kind == 'L' ? llvm::StringRef(text).split('\0').first.str() : pax_path(text);
      if (!name.empty()) long_name = name;
    } else {
      if (kind == '0' || kind == '\0')
        members.push_back({long_name.empty() ? name_of(block) : std::move(long_name), at, *bytes});
      long_name.clear();
    }
    at += (*bytes + block_bytes - 1) / block_bytes * block_bytes;
  }
  return members;
}

}  // namespace plimsoll
