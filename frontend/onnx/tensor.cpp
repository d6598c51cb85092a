#include "frontend/onnx/tensor.h"

#include "ir/support/read_file.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

#include <cstring>
#include <optional>

namespace plimsoll {
namespace {

llvm::StringRef external_entry(const onnx::TensorProto& tensor, llvm::StringRef key) {
  for (const auto& entry : tensor.external_data())
    if (entry.key() == key) return entry.value();
  return "";
}

// Byte counts of external entries are decimal text; some programs append ".0".
Result<int64_t> external_number(const onnx::TensorProto& tensor, llvm::StringRef key, int64_t otherwise) {
  llvm::StringRef text = external_entry(tensor, key);
  if (text.empty()) return otherwise;
  int64_t number = 0;
  text.consume_back(".0");
  if (text.getAsInteger(10, number) || number < 0)
    return model_error(tensor.name() + ": external data has " + key + " '" + text + "', which is not a byte count");
  return number;
}

Status check_count(const onnx::TensorProto& proto, const Type& type, int64_t stored) {
  if (stored == type.elements()) return Status::success();
  return model_error(proto.name() + ": " + to_string(type) + " needs " + llvm::Twine(type.elements()) +
                     " elements, the file has " + llvm::Twine(stored));
}

template <typename Stored, typename Field>
Status unpack(const onnx::TensorProto& proto, const Field& field, const Type& type, int64_t first,
              const TensorView& into) {
  if (Status s = check_count(proto, type, field.size())) return s;
  for (int64_t i = 0; i < into.elements(); ++i)
    into.as<Stored>()[i] = static_cast<Stored>(field.Get(static_cast<int>(first + i)));
  return Status::success();
}

// Reads elements from `first` on from the proto's typed fields. 8- and 16-bit types share int32_data, halves as bit
// patterns.
Status unpack_fields(const onnx::TensorProto& proto, const Type& type, int64_t first, const TensorView& into) {
  switch (type.dtype) {
    case DType::F32: return unpack<float>(proto, proto.float_data(), type, first, into);
    case DType::F64: return unpack<double>(proto, proto.double_data(), type, first, into);
    case DType::I64: return unpack<int64_t>(proto, proto.int64_data(), type, first, into);
    case DType::U64: return unpack<uint64_t>(proto, proto.uint64_data(), type, first, into);
    case DType::U32: return unpack<uint32_t>(proto, proto.uint64_data(), type, first, into);
    case DType::I32: return unpack<int32_t>(proto, proto.int32_data(), type, first, into);
    case DType::F16:
    case DType::BF16:
    case DType::I16:
    case DType::U16: return unpack<uint16_t>(proto, proto.int32_data(), type, first, into);
    case DType::F8E4M3:
    case DType::F8E5M2:
    case DType::I8:
    case DType::U8:
    case DType::Bool: return unpack<uint8_t>(proto, proto.int32_data(), type, first, into);
  }
  llvm_unreachable("every dtype is listed");
}

int stored_elements(const onnx::TensorProto& proto, DType dtype) {
  switch (dtype) {
    case DType::F32: return proto.float_data_size();
    case DType::F64: return proto.double_data_size();
    case DType::I64: return proto.int64_data_size();
    case DType::U64:
    case DType::U32: return proto.uint64_data_size();
    default: return proto.int32_data_size();
  }
}

bool is_inside(llvm::StringRef path, llvm::StringRef folder) {
  return path.consume_front(folder) && (folder == "/" || path.consume_front("/"));
}

std::string real_path(llvm::StringRef path) {
  llvm::SmallString<128> real;
  return llvm::sys::fs::real_path(path, real) ? std::string() : real.str().str();
}

struct DTypePair {
  onnx::TensorProto::DataType theirs;
  DType ours;
};
constexpr DTypePair dtype_pairs[] = {
    {onnx::TensorProto::FLOAT, DType::F32},           {onnx::TensorProto::DOUBLE, DType::F64},
    {onnx::TensorProto::BFLOAT16, DType::BF16},       {onnx::TensorProto::FLOAT16, DType::F16},
    {onnx::TensorProto::FLOAT8E4M3FN, DType::F8E4M3}, {onnx::TensorProto::FLOAT8E5M2, DType::F8E5M2},
    {onnx::TensorProto::INT64, DType::I64},           {onnx::TensorProto::INT32, DType::I32},
    {onnx::TensorProto::INT16, DType::I16},           {onnx::TensorProto::INT8, DType::I8},
    {onnx::TensorProto::UINT64, DType::U64},          {onnx::TensorProto::UINT32, DType::U32},
    {onnx::TensorProto::UINT16, DType::U16},          {onnx::TensorProto::UINT8, DType::U8},
    {onnx::TensorProto::BOOL, DType::Bool},
};

}  // namespace

Result<DType> dtype_from_onnx(int32_t data_type) {
  for (const DTypePair& pair : dtype_pairs)
    if (pair.theirs == data_type) return pair.ours;
  if (onnx::TensorProto::DataType_IsValid(data_type))
    return model_error("element type " +
                       onnx::TensorProto::DataType_Name(static_cast<onnx::TensorProto::DataType>(data_type)) +
                       " is not supported");
  return model_error("unknown element type " + llvm::Twine(data_type));
}

onnx::TensorProto::DataType dtype_to_onnx(DType dtype) {
  return llvm::find_if(dtype_pairs, [&](const DTypePair& pair) { return pair.ours == dtype; })->theirs;
}

bool is_external(const onnx::TensorProto& tensor) { return tensor.data_location() == onnx::TensorProto::EXTERNAL; }

Result<std::string> ExternalData::path_of(const onnx::TensorProto& tensor) const {
  llvm::StringRef location = external_entry(tensor, "location");
  if (location.empty()) return model_error(tensor.name() + ": external data without a location");
  // A model must not reach outside its own folder.
  bool climbs =
      llvm::is_contained(llvm::make_range(llvm::sys::path::begin(location), llvm::sys::path::end(location)), "..");
  if (llvm::sys::path::is_absolute(location) || climbs)
    return model_error(tensor.name() + ": external data at '" + location + "' is outside the model's folder");
  llvm::SmallString<128> path(folder_);
  llvm::sys::path::append(path, location);
  return path.str().str();
}

ExternalData::ExternalData(llvm::StringRef model_path) : folder_(llvm::sys::path::parent_path(model_path).str()) {
  const std::string model = real_path(model_path);
  for (const std::string& folder :
       {real_path(folder_.empty() ? "." : folder_), llvm::sys::path::parent_path(model).str()})
    if (!folder.empty()) real_folders_.push_back(folder);
}

Status ExternalData::check_place(const onnx::TensorProto& tensor, llvm::StringRef path) const {
  const std::string real = real_path(path);
  if (llvm::none_of(real_folders_, [&](const std::string& folder) { return is_inside(real, folder); }))
    return model_error(tensor.name() + ": external data at '" + path + "' leads to " + real +
                       ", outside the model's folder");
  if (!llvm::sys::fs::is_regular_file(real))
    return model_error(tensor.name() + ": external data at '" + path + "' is not a regular file");
  return Status::success();
}

// The part of the file that an external tensor takes.
static Result<std::pair<int64_t, int64_t>> external_range(const onnx::TensorProto& tensor, llvm::StringRef path,
                                                          int64_t size) {
  Result<Type> type = stored_type_from_onnx(tensor);
  if (!type) return type.takeError();
  Result<int64_t> offset = external_number(tensor, "offset", 0);
  if (!offset) return offset.takeError();
  Result<int64_t> length = external_number(tensor, "length", type->bytes());
  if (!length) return length.takeError();
  if (*length != type->bytes())
    return model_error(tensor.name() + ": " + to_string(*type) + " has " + llvm::Twine(type->bytes()) +
                       " bytes, its external data " + llvm::Twine(*length));
  if (*offset > size || *length > size - *offset)
    return model_error(tensor.name() + ": needs " + llvm::Twine(*length) + " bytes from byte " + llvm::Twine(*offset) +
                       " of " + path + ", which has " + llvm::Twine(size));
  return std::pair(*offset, *length);
}

Result<bool> ExternalData::exists(const onnx::TensorProto& tensor) const {
  Result<std::string> path = path_of(tensor);
  if (!path) return path.takeError();
  if (!llvm::sys::fs::exists(*path)) return false;
  if (Status s = check_place(tensor, *path)) return s;
  uint64_t size = 0;
  if (std::error_code failure = llvm::sys::fs::file_size(*path, size))
    return system_error(*path + ": " + failure.message());
  Result<std::pair<int64_t, int64_t>> range = external_range(tensor, *path, static_cast<int64_t>(size));
  if (!range) return range.takeError();
  return true;
}

Result<llvm::StringRef> ExternalData::bytes(const onnx::TensorProto& tensor) {
  Result<std::string> path = path_of(tensor);
  if (!path) return path.takeError();
  const std::lock_guard lock(guards_files_);
  std::unique_ptr<llvm::MemoryBuffer>& file = files_[*path];
  if (!file) {
    if (llvm::sys::fs::exists(*path))
      if (Status s = check_place(tensor, *path)) return s;
    Result<std::unique_ptr<llvm::MemoryBuffer>> opened = read_file(*path);
    if (!opened)
      return model_error(tensor.name() + ": cannot read its data file " + take_diag(opened.takeError()).text());
    file = std::move(*opened);
  }
  Result<std::pair<int64_t, int64_t>> range =
      external_range(tensor, *path, static_cast<int64_t>(file->getBufferSize()));
  if (!range) return range.takeError();
  return file->getBuffer().substr(static_cast<size_t>(range->first), static_cast<size_t>(range->second));
}

std::optional<FourBits> four_bits_of(const onnx::TensorProto& tensor) {
  const bool is_signed = tensor.data_type() == onnx::TensorProto::INT4;
  if (!is_signed && tensor.data_type() != onnx::TensorProto::UINT4) return std::nullopt;
  return FourBits{is_signed, Shape(tensor.dims().begin(), tensor.dims().end())};
}

Result<Type> stored_type_from_onnx(const onnx::TensorProto& tensor) {
  const bool has_4_bits = four_bits_of(tensor).has_value();
  Result<DType> dtype = has_4_bits ? DType::U8 : dtype_from_onnx(tensor.data_type());
  if (!dtype) return in_context(tensor.name(), dtype.takeError());
  Type type(*dtype, {});
  int64_t bytes = dtype_bytes(*dtype);
  for (int64_t dim : tensor.dims()) {
    if (dim < 0 || (dim > 0 && bytes > INT64_MAX / dim))
      return model_error(tensor.name() + ": bad dimension " + llvm::Twine(dim));
    type.shape.push_back(dim);
    if (dim > 0) bytes *= dim;
  }
  if (has_4_bits) type.shape = {type.elements() / 2 + type.elements() % 2};
  return type;
}

Status check_stored_inside(const onnx::TensorProto& proto, const Type& type) {
  if (!proto.has_raw_data()) return check_count(proto, type, stored_elements(proto, type.dtype));
  if (static_cast<int64_t>(proto.raw_data().size()) == type.bytes()) return Status::success();
  return model_error(proto.name() + ": " + to_string(type) + " needs " + llvm::Twine(type.bytes()) +
                     " bytes, the file has " + llvm::Twine(proto.raw_data().size()));
}

// The bytes of all elements; none where the proto's typed fields hold them.
static Result<std::optional<llvm::StringRef>> raw_bytes(const onnx::TensorProto& proto, const Type& type,
                                                        ExternalData& data) {
  if (proto.has_segment()) return model_error(proto.name() + ": segmented tensors are not supported");
  llvm::StringRef raw = proto.raw_data();
  if (is_external(proto)) {
    Result<llvm::StringRef> stored = data.bytes(proto);
    if (!stored) return stored.takeError();
    raw = *stored;
  } else if (!proto.has_raw_data()) {
    return std::nullopt;
  }
  if (static_cast<int64_t>(raw.size()) != type.bytes())
    return model_error(proto.name() + ": " + to_string(type) + " needs " + llvm::Twine(type.bytes()) +
                       " bytes, the file has " + llvm::Twine(raw.size()));
  return raw;
}

Result<Tensor> tensor_from_onnx(const onnx::TensorProto& proto, ExternalData& data) {
  if (four_bits_of(proto)) return in_context(proto.name(), dtype_from_onnx(proto.data_type()).takeError());
  return stored_from_onnx(proto, data);
}

Result<Tensor> stored_from_onnx(const onnx::TensorProto& proto, ExternalData& data) {
  Result<Type> type = stored_type_from_onnx(proto);
  if (!type) return type.takeError();
  Result<std::optional<llvm::StringRef>> raw = raw_bytes(proto, *type, data);
  if (!raw) return raw.takeError();
  if (*raw) return Tensor(*type, (*raw)->data());
  if (Status s = check_stored_inside(proto, *type)) return s;  // before memory for its shape is taken
  Tensor unpacked(*type);
  if (Status s = unpack_fields(proto, *type, 0, unpacked.view())) return s;
  return unpacked;
}

Status copy_range_from_onnx(const onnx::TensorProto& proto, ExternalData& data, int64_t first, const TensorView& into) {
  Result<Type> type = stored_type_from_onnx(proto);
  if (!type) return type.takeError();
  Result<std::optional<llvm::StringRef>> raw = raw_bytes(proto, *type, data);
  if (!raw) return raw.takeError();
  if (!*raw) return unpack_fields(proto, *type, first, into);
  std::memcpy(into.data, (*raw)->data() + first * dtype_bytes(type->dtype), static_cast<size_t>(into.type.bytes()));
  return Status::success();
}

}  // namespace plimsoll
