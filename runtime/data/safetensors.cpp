#include "runtime/data/safetensors.h"

#include "ir/support/json_text.h"
#include "ir/support/little_endian.h"
#include "ir/support/output_file.h"
#include "runtime/data/input_file.h"
#include "runtime/data/read_pieces.h"

#include "llvm/Support/Endian.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/raw_ostream.h"

#include <algorithm>

namespace plimsoll {
namespace {

constexpr int64_t bytes_read_at_once = int64_t{1} << 21;
constexpr int64_t largest_header = int64_t{100} << 20;  // the format's own limit

struct NamedDType {
  llvm::StringLiteral name;
  DType dtype;
};
constexpr NamedDType names[] = {
    {"F64", DType::F64},        {"F32", DType::F32},        {"BF16", DType::BF16}, {"F16", DType::F16},
    {"F8_E4M3", DType::F8E4M3}, {"F8_E5M2", DType::F8E5M2}, {"I64", DType::I64},   {"I32", DType::I32},
    {"I16", DType::I16},        {"I8", DType::I8},          {"U64", DType::U64},   {"U32", DType::U32},
    {"U16", DType::U16},        {"U8", DType::U8},          {"BOOL", DType::Bool},
};

std::optional<DType> dtype_named(llvm::StringRef name) {
  for (const NamedDType& row : names)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

llvm::StringRef name_of(DType dtype) {
  for (const NamedDType& row : names)
    if (row.dtype == dtype) return row.name;
  return "";
}

Result<TensorEntry> parse_entry(llvm::StringRef path, llvm::StringRef name, const llvm::json::Value& value,
                                int64_t data_start, int64_t file_bytes) {
  auto bad = [&](const llvm::Twine& why) { return model_error(path + ": tensor '" + name + "' " + why); };
  const llvm::json::Object* object = value.getAsObject();
  const llvm::json::Array* shape = object ? object->getArray("shape") : nullptr;
  const llvm::json::Array* range = object ? object->getArray("data_offsets") : nullptr;
  const std::optional<llvm::StringRef> dtype_text = text_field(object, "dtype");
  if (!shape || !range || range->size() != 2 || !dtype_text) return bad("lacks dtype, shape or data_offsets");
  std::optional<DType> dtype = dtype_named(*dtype_text);
  if (!dtype) return bad("has dtype " + *dtype_text + ", which is not supported");
  TensorEntry entry{name.str(), Type(*dtype, {}), 0};
  for (const llvm::json::Value& dim : *shape) {
    const auto number = dim.getAsInteger();
    if (!number || *number < 0) return bad("has a dimension that is no count");
    entry.type.shape.push_back(*number);
  }
  if (!is_countable(entry.type.shape)) return bad("has more elements than any file");
  const auto first = (*range)[0].getAsInteger(), last = (*range)[1].getAsInteger();
  if (!first || !last || *first < 0 || *last < *first || *last > file_bytes - data_start)
    return bad("lies outside the file of " + llvm::Twine(file_bytes) + " bytes");
  if (*last - *first != entry.type.bytes())
    return bad("is " + to_string(entry.type) + " of " + llvm::Twine(entry.type.bytes()) + " bytes but has " +
               llvm::Twine(*last - *first));
  entry.offset = data_start + *first;
  return entry;
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::open(llvm::StringRef path) {
  Result<InputFile> file = InputFile::open(path);
  if (!file) return file.takeError();
  char size[8];
  if (file->bytes() < 8)
    return model_error(path + ": not a safetensors file: " + llvm::Twine(file->bytes()) + " bytes");
  if (Status s = file->read_at(0, size, sizeof size)) return s;
  const uint64_t header_bytes = llvm::support::endian::read64le(size);
  if (header_bytes > static_cast<uint64_t>(std::min(largest_header, file->bytes() - 8)))
    return model_error(path + ": not a safetensors file: a header of " + llvm::Twine(header_bytes) + " bytes");
  std::string text(header_bytes, '\0');
  if (Status s = file->read_at(8, text.data(), static_cast<int64_t>(header_bytes))) return s;
  Result<llvm::json::Value> json = parse_json(text);
  if (!json) return in_context(path + ": header", json.takeError());
  const llvm::json::Object* object = json->getAsObject();
  if (!object) return model_error(path + ": header is not an object");

  SafetensorsFile out;
  out.path_ = path.str();
  for (const auto& [key, value] : *object) {
    if (key == "__metadata__") {
      if (const llvm::json::Object* texts = value.getAsObject())
        for (const auto& [name, text] : *texts)
          if (auto known = text.getAsString()) out.metadata_[name.str()] = known->str();
      continue;
    }
    Result<TensorEntry> entry = parse_entry(path, key, value, 8 + static_cast<int64_t>(header_bytes), file->bytes());
    if (!entry) return entry.takeError();
    out.entries_.push_back(std::move(*entry));
  }
  std::sort(out.entries_.begin(), out.entries_.end(),
            [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  for (size_t i = 0; i < out.entries_.size(); ++i) out.index_[out.entries_[i].name] = i;
  return out;
}

const TensorEntry* SafetensorsFile::find(llvm::StringRef name) const {
  auto at = index_.find(name);
  return at == index_.end() ? nullptr : &entries_[at->second];
}

Status SafetensorsFile::read(const TensorEntry& entry, void* out) const {
  return read_range(entry, 0, entry.type.elements(), out);
}

Status SafetensorsFile::read_range(const TensorEntry& entry, int64_t first, int64_t count, void* out) const {
  Result<InputFile> file = InputFile::open(path_);
  if (!file) return file.takeError();
  const int64_t size = dtype_bytes(entry.type.dtype);
  return read_in_pieces(count * size, bytes_read_at_once, [&](int64_t at, int64_t bytes, int) {
    return file->read_at(entry.offset + first * size + at, static_cast<char*>(out) + at, bytes);
  });
}

std::string safetensors_header(llvm::ArrayRef<TensorEntry> entries,
                               const std::map<std::string, std::string>& metadata) {
  llvm::json::Object header;
  if (!metadata.empty()) {
    llvm::json::Object texts;
    for (const auto& [name, text] : metadata) texts[name] = text;
    header["__metadata__"] = std::move(texts);
  }
  int64_t at = 0;
  for (const TensorEntry& entry : entries) {
    header[entry.name] = llvm::json::Object{{"dtype", name_of(entry.type.dtype)},
                                            {"shape", llvm::json::Array(entry.type.shape)},
                                            {"data_offsets", llvm::json::Array{at, at + entry.type.bytes()}}};
    at += entry.type.bytes();
  }
  std::string text = llvm::formatv("{0}", llvm::json::Value(std::move(header))).str();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // tensors start 8-byte aligned
  return little_endian<uint64_t>(text.size()) + text;
}

Status write_safetensors(llvm::StringRef path, llvm::ArrayRef<TensorEntry> entries,
                         const std::function<Status(const TensorEntry& entry, void* out)>& read,
                         const std::map<std::string, std::string>& metadata) {
  int64_t largest = 0;
  for (const TensorEntry& entry : entries) largest = std::max(largest, entry.type.bytes());
  return write_output_file(path, [&](llvm::raw_ostream& out) -> Status {
    out << safetensors_header(entries, metadata);
    std::string buffer(static_cast<size_t>(largest), '\0');
    for (const TensorEntry& entry : entries) {
      if (Status s = read(entry, buffer.data())) return s;
      out.write(buffer.data(), static_cast<size_t>(entry.type.bytes()));
    }
    return Status::success();
  });
}

}  // namespace plimsoll
