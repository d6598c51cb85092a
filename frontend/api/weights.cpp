#include "frontend/api/weights.h"

#include "frontend/onnx/model.h"
#include "ir/support/strings.h"
#include "runtime/cpu/convert.h"
#include "runtime/data/safetensors.h"

namespace plimsoll {
namespace {

// Which weights a file has, and how elements of one are read in the file's type.
struct WeightFile {
  std::function<std::optional<Type>(llvm::StringRef name)> type_of;
  std::function<Status(llvm::StringRef name, int64_t first, const TensorView& into)> read;
};

bool may_convert(const Type& from, const Type& to) {
  return from.shape == to.shape && is_float(from.dtype) && is_float(to.dtype);
}

// The whole of a weight is its range from 0 on, in its own shape.
Weights weights_of(const std::string& path, WeightFile file) {
  WeightRangeLoader load_range = [path, file](llvm::StringRef name, const Type& whole, int64_t first,
                                              const TensorView& into) -> Status {
    const std::optional<Type> stored = file.type_of(name);
    if (!stored) return model_error(path + ": has no weight '" + name + "'");
    if (stored->dtype == whole.dtype && stored->shape == whole.shape) return file.read(name, first, into);
    if (!may_convert(*stored, whole))
      return model_error(path + ": weight '" + name + "' is " + to_string(*stored) + ", the plan needs " +
                         to_string(whole));
    return read_converted(stored->dtype, first, into,
                          [&](int64_t at, const TensorView& part) { return file.read(name, at, part); });
  };
  WeightLoader load = [load_range](llvm::StringRef name, const TensorView& into) {
    return load_range(name, into.type, 0, into);
  };
  return {std::move(load), std::move(load_range), std::move(file.type_of)};
}

Result<WeightFile> open_onnx(const std::string& path) {
  Result<Model> model = Model::read(path);
  if (!model) return model.takeError();
  auto kept = std::make_shared<Model>(std::move(*model));
  Result<WeightSource> source = WeightSource::open(*kept);
  if (!source) return source.takeError();
  auto weights = std::make_shared<WeightSource>(std::move(*source));
  return WeightFile{[kept, weights](llvm::StringRef name) -> std::optional<Type> {
                      const Weight* weight = weights->find(name);
                      return weight ? std::optional<Type>(weight->type) : std::nullopt;
                    },
                    [path, kept, weights](llvm::StringRef name, int64_t first, const TensorView& into) -> Status {
                      Status loaded = weights->load_range(name, first, into);
                      return loaded ? in_context(path, std::move(loaded)) : Status::success();
                    }};
}

Result<WeightFile> open_safetensors(const std::string& path) {
  Result<SafetensorsFile> file = SafetensorsFile::open(path);
  if (!file) return file.takeError();
  auto kept = std::make_shared<SafetensorsFile>(std::move(*file));
  return WeightFile{[kept](llvm::StringRef name) -> std::optional<Type> {
                      const TensorEntry* entry = kept->find(name);
                      return entry ? std::optional<Type>(entry->type) : std::nullopt;
                    },
                    [kept](llvm::StringRef name, int64_t first, const TensorView& into) {
                      return kept->read_range(*kept->find(name), first, into.elements(), into.data);
                    }};
}

}  // namespace

Status read_converted(DType stored, int64_t first, const TensorView& into, ReadRange read) {
  const int64_t count = into.elements(), at_once = std::min(count, elements_converted_at_once);
  Tensor buffer(Type(stored, {at_once}));
  for (int64_t done = 0; done < count; done += at_once) {
    const int64_t now = std::min(at_once, count - done);
    const TensorView part{Type(stored, {now}), buffer.data()};
    if (Status s = read(first + done, part)) return s;
    convert_elements(part, {Type(into.type.dtype, {now}), into.as<char>() + done * dtype_bytes(into.type.dtype)});
  }
  return Status::success();
}

Result<Weights> open_weights(const std::string& path) {
  if (!ends_with(path, ".onnx") && !ends_with(path, ".safetensors"))
    return usage_error(path + ": weights come from a .onnx or a .safetensors file");
  Result<WeightFile> file = ends_with(path, ".onnx") ? open_onnx(path) : open_safetensors(path);
  if (!file) return file.takeError();
  return weights_of(path, std::move(*file));
}

}  // namespace plimsoll
