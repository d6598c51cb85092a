#include "frontend/api/weights.h"

#include "frontend/onnx/exported_adapters.h"
#include "frontend/onnx/model.h"
#include "ir/adapter_names.h"
#include "ir/evaluate.h"
#include "ir/support/json_text.h"
#include "ir/support/strings.h"
#include "runtime/cpu/convert.h"
#include "runtime/data/read_pieces.h"
#include "runtime/data/safetensors.h"

#include "llvm/Support/JSON.h"

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

// A matrix of an adapter that the file has, perhaps as its transpose.
Status read_matrix(const WeightSource& weights, const ExportedParameter& matrix, int64_t first,
                   const TensorView& into) {
  if (!matrix.transposed) return weights.load_range(matrix.initializer, first, into);
  Result<Tensor> stored = weights.load(matrix.initializer);
  if (!stored) return stored.takeError();
  const int64_t rows = matrix.type.shape[0], columns = matrix.type.shape[1];
  for (int64_t i = 0; i < into.elements(); ++i) {
    const int64_t at = first + i;
    into.set(i, stored->get(at % columns * rows + at / columns));
  }
  return Status::success();
}

// As f32, in the form that DoRA's norms want it.
Result<Tensor> load_f32(const WeightSource& weights, const ExportedParameter& matrix) {
  const Weight* stored = weights.find(matrix.initializer);
  if (!stored) return model_error("has no initializer '" + matrix.initializer + "'");
  Tensor own(Type(stored->type.dtype, matrix.type.shape)), wide(Type(DType::F32, matrix.type.shape));
  if (Status s = read_matrix(weights, matrix, 0, own.view())) return s;
  convert_elements(own.view(), wide.view());
  return wide;
}

// Magnitudes of which the file has the factor, magnitudes over norms, as it was when the model was exported: exporters
// fold so what is small.
Status read_folded_magnitude(const WeightSource& weights, const ExportedAdapters& adapters,
                             const ExportedFactor& factor, int64_t first, const TensorView& into) {
  std::vector<Tensor> operands;
  Result<Tensor> weight = weights.load(factor.weight);
  if (!weight) return weight.takeError();
  operands.push_back(std::move(*weight));
  for (const std::string& key : {factor.a, factor.b, factor.magnitude}) {
    Result<Tensor> operand = load_f32(weights, adapters.parameters.at(key));
    if (!operand) return operand.takeError();
    operands.push_back(std::move(*operand));
  }
  Result<std::vector<Tensor>> made = evaluate_node(
      get_op("dora_scale"), {{"scale", factor.scale}, {"transpose_w", int64_t{!factor.weight_transposed}}},
      {&operands[0], &operands[1], &operands[2], &operands[3]});
  if (!made) return made.takeError();
  const Tensor &quotients = operands[3], &norms = (*made)[1];
  for (int64_t i = 0; i < into.elements(); ++i) into.set(i, quotients.get(first + i) * norms.get(first + i));
  return Status::success();
}

// What an adapter that the file has is, under PEFT's key; none: no such adapter.
std::optional<Status> read_exported(const WeightSource& weights, const ExportedAdapters& adapters, llvm::StringRef name,
                                    int64_t first, const TensorView& into) {
  const auto matrix = adapters.parameters.find(name.str());
  if (matrix == adapters.parameters.end()) return std::nullopt;
  const auto weight = parse_adapter_weight(name);
  if (weight && weight->matrix == AdapterMatrix::Magnitude)
    if (const ExportedFactor& factor = adapters.factors.at(weight->module.str()); factor.folded)
      return read_folded_magnitude(weights, adapters, factor, first, into);
  return read_matrix(weights, matrix->second, first, into);
}

Result<WeightFile> open_onnx(const std::string& path) {
  Result<Model> model = Model::read(path);
  if (!model) return model.takeError();
  auto kept = std::make_shared<Model>(std::move(*model));
  Result<WeightSource> source = WeightSource::open(*kept);
  if (!source) return source.takeError();
  auto weights = std::make_shared<WeightSource>(std::move(*source));
  Result<ExportedAdapters> exported = find_exported_adapters(kept->proto().graph());
  if (!exported) return in_context(path, exported.takeError());
  auto adapters = std::make_shared<ExportedAdapters>(std::move(*exported));
  return WeightFile{
      [kept, weights, adapters](llvm::StringRef name) -> std::optional<Type> {
        if (const auto matrix = adapters->parameters.find(name.str()); matrix != adapters->parameters.end())
          return matrix->second.type;
        const Weight* weight = weights->find(name);
        return weight ? std::optional<Type>(weight->type) : std::nullopt;
      },
      [path, kept, weights, adapters](llvm::StringRef name, int64_t first, const TensorView& into) -> Status {
        std::optional<Status> exported = read_exported(*weights, *adapters, name, first, into);
        Status loaded = exported ? std::move(*exported) : weights->load_range(name, first, into);
        return loaded ? in_context(path, std::move(loaded)) : Status::success();
      }};
}

// bitsandbytes keeps the offset of a weight's scales in JSON, as the bytes of a tensor beside it.
constexpr llvm::StringLiteral offset_suffix = ".nested_offset", quant_state_suffix = ".quant_state.bitsandbytes__nf4";

Result<float> read_offset(const SafetensorsFile& file, const TensorEntry& entry) {
  std::string text(static_cast<size_t>(entry.type.bytes()), ' ');
  if (Status s = file.read(entry, text.data())) return s;
  Result<llvm::json::Value> json = parse_json(text);
  if (!json) return in_context(entry.name, json.takeError());
  const llvm::json::Object* object = json->getAsObject();
  const auto number = number_field(object, "nested_offset");
  const auto block = integer_field(object, "blocksize");
  if (!number || !block) return model_error(entry.name + ": has no blocksize and nested_offset");
  if (*block != 64)
    return model_error(entry.name + ": has blocks of " + llvm::Twine(*block) + ", only 64 is supported");
  return static_cast<float>(*number);
}

Result<WeightFile> open_safetensors(const std::string& path) {
  Result<SafetensorsFile> file = SafetensorsFile::open(path);
  if (!file) return file.takeError();
  auto kept = std::make_shared<SafetensorsFile>(std::move(*file));
  const auto state_of = [kept](llvm::StringRef name) -> const TensorEntry* {
    return name.consume_back(offset_suffix) ? kept->find((name + quant_state_suffix).str()) : nullptr;
  };
  return WeightFile{[kept, state_of](llvm::StringRef name) -> std::optional<Type> {
                      if (state_of(name)) return Type(DType::F32, {1});
                      const TensorEntry* entry = kept->find(name);
                      return entry ? std::optional<Type>(entry->type) : std::nullopt;
                    },
                    [path, kept, state_of](llvm::StringRef name, int64_t first, const TensorView& into) -> Status {
                      const TensorEntry* state = state_of(name);
                      if (!state) return kept->read_range(*kept->find(name), first, into.elements(), into.data);
                      Result<float> offset = read_offset(*kept, *state);
                      if (!offset) return in_context(path, offset.takeError());
                      return into.set(0, *offset), Status::success();
                    }};
}

}  // namespace

Status read_converted(DType stored, int64_t first, const TensorView& into, ReadRange read) {
  const int64_t count = into.elements(), at_once = std::min(count, elements_converted_at_once);
  std::vector<Tensor> buffers(static_cast<size_t>(reading_threads()));
  return read_in_pieces(count, elements_converted_at_once, [&](int64_t done, int64_t now, int thread) -> Status {
    Tensor& buffer = buffers[static_cast<size_t>(thread)];
    if (!buffer.data()) buffer = Tensor(Type(stored, {at_once}));
    const TensorView part{Type(stored, {now}), buffer.data()};
    if (Status s = read(first + done, part)) return s;
    convert_elements(part, {Type(into.type.dtype, {now}), into.as<char>() + done * dtype_bytes(into.type.dtype)});
    return Status::success();
  });
}

Result<Weights> open_weights(const std::string& path) {
  if (!ends_with(path, ".onnx") && !ends_with(path, ".safetensors"))
    return usage_error(path + ": weights come from a .onnx or a .safetensors file");
  Result<WeightFile> file = ends_with(path, ".onnx") ? open_onnx(path) : open_safetensors(path);
  if (!file) return file.takeError();
  return weights_of(path, std::move(*file));
}

}  // namespace plimsoll
