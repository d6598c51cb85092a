#include "runtime/data/numpy.h"

#include "ir/support/strings.h"
#include "runtime/data/input_file.h"

#include "llvm/ADT/SmallVector.h"
#include "llvm/Support/Endian.h"

#include <zlib.h>
#include <cstring>

namespace plimsoll {
namespace {

using llvm::StringRef;

// The text between the quotes (or brackets) after `key` in the header's Python dictionary.
StringRef field(StringRef header, StringRef key, char open, char close) {
  size_t at = header.find(key);
  if (at == StringRef::npos) return "";
  StringRef rest = header.substr(at + key.size());
  size_t begin = rest.find(open);
  if (begin == StringRef::npos) return "";
  rest = rest.substr(begin + 1);
  return rest.substr(0, rest.find(close));
}

std::optional<DType> dtype_of(StringRef descr) {
  if (descr == "|b1") return DType::Bool;
  if (descr == "|u1") return DType::U8;
  if (descr == "|i1") return DType::I8;
  if (!descr.consume_front("<")) return std::nullopt;
  constexpr std::pair<llvm::StringLiteral, DType> rows[] = {{"f8", DType::F64}, {"f4", DType::F32}, {"f2", DType::F16},
                                                            {"i8", DType::I64}, {"i4", DType::I32}, {"i2", DType::I16},
                                                            {"u8", DType::U64}, {"u4", DType::U32}, {"u2", DType::U16}};
  for (const auto& [name, dtype] : rows)
    if (name == descr) return dtype;
  return std::nullopt;
}

Result<Tensor> parse_array(StringRef where, StringRef bytes) {
  if (bytes.size() < 12 || !starts_with(bytes, "\x93NUMPY")) return model_error(where + ": not a .npy array");
  bool wide = bytes[6] >= 2;
  size_t length =
      wide ? llvm::support::endian::read32le(bytes.data() + 8) : llvm::support::endian::read16le(bytes.data() + 8);
  size_t start = wide ? 12 : 10;
  if (length > bytes.size() - start)
    return model_error(where + ": header of " + llvm::Twine(length) + " bytes is cut short");
  StringRef header = bytes.substr(start, length), data = bytes.substr(start + length);
  StringRef descr = field(header, "'descr':", '\'', '\'');
  std::optional<DType> dtype = dtype_of(descr);
  if (!dtype) return model_error(where + ": dtype '" + descr + "' is not supported");
  if (header.contains("'fortran_order': True")) return model_error(where + ": is in Fortran order; save it in C order");
  Type type(*dtype, {});
  llvm::SmallVector<StringRef, 4> dims;
  field(header, "'shape':", '(', ')').split(dims, ',', -1, false);
  for (StringRef dim : dims) {
    int64_t value = 0;
    if (dim.trim().empty()) continue;
    if (dim.trim().getAsInteger(10, value) || value < 0) return model_error(where + ": shape cannot be read");
    type.shape.push_back(value);
  }
  if (!is_countable(type.shape))
    return model_error(where + ": " + to_string(type) + " has more elements than any file");
  if (type.bytes() != static_cast<int64_t>(data.size()))
    return model_error(where + ": " + to_string(type) + " takes " + llvm::Twine(type.bytes()) +
                       " bytes, the file has " + llvm::Twine(data.size()));
  return Tensor(type, data.data());
}

// No deflated byte makes more than 1,032 bytes, so that a damaged size is not believed.
Result<std::string> inflate_member(StringRef where, StringRef packed, size_t size) {
  if (size / 1032 > packed.size() || packed.size() > UINT32_MAX || size > UINT32_MAX)
    return model_error(where + ": damaged archive member, or one above 4 GiB; store it without compression");
  std::string out(size, '\0');
  z_stream stream = {};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return system_error(where + ": zlib cannot start");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(size);
  int state = inflate(&stream, Z_FINISH);
  inflateEnd(&stream);
  if (state != Z_STREAM_END || stream.total_out != size) return model_error(where + ": damaged archive member");
  return out;
}

// Sizes and places of 64-bit archives stand in an extra field (id 1), in the order of the fields that overflowed.
uint64_t widen(uint32_t narrow, StringRef extra, unsigned& next) {
  if (narrow != 0xffffffffu) return narrow;
  while (extra.size() >= 4) {
    uint16_t id = llvm::support::endian::read16le(extra.data()),
             length = llvm::support::endian::read16le(extra.data() + 2);
    if (length > extra.size() - 4) break;
    if (id == 1 && length >= 8 * (next + 1)) return llvm::support::endian::read64le(extra.data() + 4 + 8 * next++);
    extra = extra.substr(4u + length);
  }
  return narrow;
}

// zlib takes 4 GiB at a time.
uint32_t crc_of(StringRef bytes) {
  uLong crc = crc32(0, nullptr, 0);
  while (!bytes.empty()) {
    const StringRef part = bytes.take_front(size_t{1} << 30);
    crc = crc32(crc, reinterpret_cast<const Bytef*>(part.data()), static_cast<uInt>(part.size()));
    bytes = bytes.drop_front(part.size());
  }
  return static_cast<uint32_t>(crc);
}

// Reads through the central directory, which has the sizes even when members were streamed.
Result<std::vector<NamedTensor>> parse_archive(StringRef path, StringRef bytes) {
  auto damaged = [&] { return model_error(path + ": damaged .npz archive"); };
  using namespace llvm::support::endian;
  size_t end = bytes.rfind("PK\x05\x06");
  if (end == StringRef::npos || bytes.size() - end < 22) return damaged();
  size_t count = read16le(bytes.data() + end + 10), at = read32le(bytes.data() + end + 16);
  std::vector<NamedTensor> out;
  for (size_t i = 0; i < count; ++i) {
    if (at > bytes.size() || bytes.size() - at < 46 || bytes.substr(at, 4) != "PK\x01\x02") return damaged();
    const char* entry = bytes.data() + at;
    size_t name_length = read16le(entry + 28), extra_length = read16le(entry + 30), comment = read16le(entry + 32);
    if (bytes.size() - at - 46 < name_length + extra_length + comment) return damaged();
    StringRef name = bytes.substr(at + 46, name_length), extra = bytes.substr(at + 46 + name_length, extra_length);
    unsigned next = 0;
    uint64_t size = widen(read32le(entry + 24), extra, next), packed_size = widen(read32le(entry + 20), extra, next);
    uint64_t local = widen(read32le(entry + 42), extra, next);
    if (local > bytes.size() || bytes.size() - local < 30) return damaged();
    uint64_t start = local + 30 + read16le(bytes.data() + local + 26) + read16le(bytes.data() + local + 28);
    if (start > bytes.size() || packed_size > bytes.size() - start || size > (uint64_t{1} << 40)) return damaged();
    StringRef packed = bytes.substr(start, packed_size);
    std::string where = (path + ":" + name).str(), unpacked;
    uint16_t method = read16le(entry + 10);
    if (method == 8) {
      Result<std::string> inflated = inflate_member(where, packed, size);
      if (!inflated) return inflated.takeError();
      unpacked = std::move(*inflated);
    } else if (method != 0) {
      return model_error(where + ": compression method " + llvm::Twine(method) + " is not supported");
    }
    const StringRef member = method == 8 ? StringRef(unpacked) : packed;
    if (crc_of(member) != read32le(entry + 16))
      return model_error(where + ": is damaged: its bytes do not have the checksum that the archive says");
    Result<Tensor> tensor = parse_array(where, member);
    if (!tensor) return tensor.takeError();
    name.consume_back(".npy");
    out.push_back({name.str(), std::move(*tensor)});
    at += 46 + name_length + extra_length + comment;
  }
  return out;
}

}  // namespace

Result<std::vector<NamedTensor>> read_numpy(llvm::StringRef path) {
  Result<InputFile> file = InputFile::open(path);
  if (!file) return file.takeError();
  std::string bytes(static_cast<size_t>(file->bytes()), '\0');
  if (Status s = file->read_at(0, bytes.data(), file->bytes())) return s;
  if (starts_with(bytes, "PK")) return parse_archive(path, bytes);
  Result<Tensor> tensor = parse_array(path, bytes);
  if (!tensor) return tensor.takeError();
  std::vector<NamedTensor> out;
  out.push_back({"", std::move(*tensor)});
  return out;
}

}  // namespace plimsoll
